import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from syncguard.checkpoints import looks_low_precision, read_checkpoint, require_blocks
from syncguard.errors import UsageError

PROJECTION = "model.layers.0.mlp.down_proj.weight"
INDEX = "model.safetensors.index.json"


def configure(folder: Path, **settings: object) -> None:
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"} | settings
    (folder / "config.json").write_text(json.dumps(config))


def store(folder: Path, columns: int = 64, file: str = "model.safetensors") -> None:
    save_file({PROJECTION: torch.zeros(2, columns, dtype=torch.bfloat16)}, folder / file)


def index(folder: Path, placed: object) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": placed}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    configure(tmp_path)
    store(tmp_path)
    return tmp_path


def test_healthy_folder(folder: Path) -> None:
    checkpoint = read_checkpoint(folder, quantization="mxfp8")
    assert checkpoint.name == str(folder)
    assert checkpoint.architecture == "Qwen3ForCausalLM"
    (entry,) = checkpoint.tensors.values()
    assert (entry.file, entry.dtype, entry.shape) == ("model.safetensors", "BF16", (2, 64))


def test_healthy_shards(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "part-1.safetensors")
    save_file({"model.norm.weight": torch.ones(64)}, folder / "part-2.safetensors")
    index(
        folder,
        {PROJECTION: "part-1.safetensors", "model.norm.weight": "part-2.safetensors"},
    )
    tensors = read_checkpoint(folder).tensors
    assert {name: entry.file for name, entry in tensors.items()} == {
        PROJECTION: "part-1.safetensors",
        "model.norm.weight": "part-2.safetensors",
    }


def test_pickles_beside_safetensors_are_not_looked_at(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"not even a pickle")
    assert list(read_checkpoint(folder).tensors) == [PROJECTION]


def test_own_code_is_ignored_where_transformers_knows_the_model(folder: Path) -> None:
    configure(folder, auto_map={"AutoModelForCausalLM": "modeling.Evil"})
    assert read_checkpoint(folder).config["model_type"] == "qwen3"


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def lengthen(folder: Path) -> None:
    with (folder / "model.safetensors").open("ab") as stream:
        stream.write(b"\0")


def overwrite(content: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(content)

    return damage


def header(text: str, data: bytes = b"") -> Callable[[Path], None]:
    return overwrite(len(text).to_bytes(8, "little") + text.encode() + data)


def only_pickles(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def bad_config(text: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / "config.json").write_text(text)

    return damage


def with_config(**settings: object) -> Callable[[Path], None]:
    return lambda folder: configure(folder, **settings)


def with_index(placed: object) -> Callable[[Path], None]:
    return lambda folder: index(folder, placed)


DAMAGES = {
    "no config": (
        lambda folder: (folder / "config.json").unlink(),
        r"config.json is missing. Give the folder that `save_pretrained` wrote",
    ),
    "config not JSON": (bad_config("{"), r"config.json': expected JSON, got .*Copy the file again"),
    "config a list": (bad_config("[]"), r"config.json': expected a JSON object, got list"),
    "no architectures": (
        with_config(architectures=None),
        r"expected 'architectures' with the name of a causal language model, got None",
    ),
    "own code": (
        with_config(auto_map={"AutoModel": "modeling.Evil"}, model_type="evil"),
        r"brings its own code \('auto_map'\) and transformers does not know model type 'evil'",
    ),
    "quantized": (
        with_config(quantization_config={"quant_method": "fp8"}),
        r"quantized already \(quant_method 'fp8'\).*give the checkpoint that it was made from",
    ),
    "only pickles": (
        only_pickles,
        r"found only pickles \(pytorch_model.bin\), which can run code when loaded. Save them",
    ),
    "no weights": (no_weights, r"expected weights in model.safetensors or .*, found none"),
    "truncated": (
        truncate,
        r"is truncated or damaged: expected \d+ bytes by its header, got \d+ bytes. Finish the",
    ),
    "too long": (lengthen, r"is truncated or damaged: expected \d+ bytes by its header"),
    "empty": (overwrite(b""), r"expected a header of at most 0 bytes, got 0 bytes"),
    "cut in the header": (overwrite(b"\x40" + bytes(9)), r"a header of at most 2 bytes, got 64"),
    "header not JSON": (header("{]"), r"expected a JSON header of dtype, shape and data_offsets"),
    "header a list": (header("[]"), r"expected a JSON header of dtype, shape and data_offsets"),
    "no offsets": (
        header('{"w": {"dtype": "BF16", "shape": [1]}}'),
        r"expected a JSON header of dtype, shape and data_offsets, got KeyError",
    ),
    "wrong size": (
        header('{"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 2]}}', b"\0\0"),
        r"expected 4 bytes for tensor 'w', got 2 bytes",
    ),
    "LFS pointer": (
        overwrite(b"version https://git-lfs.github.com/spec/v1\n"),
        r"is a Git LFS pointer, not the weights. Fetch them with `git lfs pull`",
    ),
    "index without map": (with_index([]), r"expected 'weight_map' with a file for each tensor"),
    "index to a missing file": (
        with_index({PROJECTION: "part-1.safetensors"}),
        r"1 of 1 files that model.safetensors.index.json names are missing: part-1.safetensors",
    ),
    "index to a missing tensor": (
        with_index({PROJECTION: "model.safetensors", "lost.weight": "model.safetensors"}),
        r"1 of 2 tensors are not in the files that .* first 'lost.weight' in 'model.safetensors'",
    ),
}


@pytest.mark.parametrize(("damage", "text"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_folder_is_refused(damage: Callable[[Path], None], text: str, folder: Path) -> None:
    read_checkpoint(folder)
    damage(folder)
    with pytest.raises(UsageError, match=text) as caught:
        read_checkpoint(folder)
    assert str(folder) in str(caught.value)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a checkpoint folder, found nothing"):
        read_checkpoint(tmp_path / "absent")


def test_file_in_place_of_a_folder(folder: Path) -> None:
    with pytest.raises(UsageError, match="expected a checkpoint folder, found a file"):
        read_checkpoint(folder / "config.json")


def test_unknown_quantization(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"expected one of int8, mxfp8, none, got 'fp4'"):
        read_checkpoint(folder, quantization="fp4")


def test_ragged_width_is_refused_for_mxfp8_only(folder: Path) -> None:
    store(folder, columns=48)
    read_checkpoint(folder, quantization="none")
    with pytest.raises(UsageError) as caught:
        read_checkpoint(folder, quantization="mxfp8")
    assert str(caught.value) == (
        f"weight '{PROJECTION}' of shape [2, 48]: MXFP8 needs in-features (dimension 1) that are a "
        "multiple of 32, got 48. Use a model whose layer widths are multiples of 32, or "
        "quantization 'none'"
    )


def test_all_ragged_weights_are_counted() -> None:
    shapes = [("a", (4, 32)), ("b", (4, 33)), ("c", (2, 4, 16))]
    with pytest.raises(UsageError, match=re.escape("'b' of shape [4, 33] (and 1 more weights)")):
        require_blocks(shapes)
    require_blocks(shapes[:1])


@pytest.mark.parametrize(
    ("weight", "low"),
    [
        ("model.layers.0.self_attn.q_proj.weight", True),
        ("model.layers.0.mlp.gate_proj.weight", True),
        ("model.layers.0.mlp.experts.7.gate_proj.weight", True),
        ("model.layers.0.mlp.gate.weight", False),
        ("model.embed_tokens.weight", False),
        ("lm_head.weight", False),
    ],
)
def test_low_precision_by_name(weight: str, low: bool) -> None:
    assert looks_low_precision(weight, (64, 64)) is low
    assert not looks_low_precision(weight, (64,))
