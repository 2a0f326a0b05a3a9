"""``syncguard smoke``."""

import contextlib
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from syncguard.cli.errors import exit_codes
from syncguard.cli.naming import naming
from syncguard.errors import UsageError
from syncguard.report import exit_code
from syncguard.reporting import Broadcast, Listener, ReportFile, ReportFolder, Terminal
from syncguard.reporting.terminal import standard_console

__all__ = ["smoke"]


def smoke(
    engine: Annotated[
        str, typer.Option(metavar="vllm|sglang|stub|MODULE:FACTORY", help="The sampler to check.")
    ] = "vllm",
    model: Annotated[
        str | None,
        naming(
            "NAME|PATH",
            "tiny-qwen3 (the default), tiny-qwen3-tied, tiny-qwen3-wide, tiny-qwen3-moe, "
            "tiny-qwen3-moe-wide, tiny-glm4-moe, tiny-llama, or a checkpoint's folder; for the "
            "stub stub-dense (the default), stub-tied, stub-mla, stub-moe, stub-ranks or "
            "stub-replicas.",
        ),
    ] = None,
    quantization: Annotated[
        Literal["mxfp8", "modelopt-mxfp8", "int8-w8a8", "mxfp8-online", "mxfp8-trtllm", "none"],
        typer.Option(
            help="How both sides run their linear layers; modelopt-mxfp8: vLLM holds a serialized "
            "checkpoint, and elements and scales are sent; int8-w8a8: the same in INT8 of a "
            "learner in bf16. SGLang's mxfp8 is serialized, "
            "mxfp8-online is quantized by SGLang, mxfp8-trtllm shuffled for TRT-LLM's kernel."
        ),
    ] = "mxfp8",
    path: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="How weights travel. vLLM: transfer (its update session, the default), reload "
            "or extension (of its workers); "
            "SGLang: session (the default), flattened, loader or disk.",
            show_default=False,
        ),
    ] = "",
    tp: Annotated[
        int,
        typer.Option(
            "--tp", min=1, metavar="N", help="Tensor-parallel ranks, each in its own process."
        ),
    ] = 1,
    replicas: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Engines of vLLM that serve one policy; each is judged."
        ),
    ] = 1,
    draft: Annotated[
        str | None,
        naming(
            "NAME|PATH",
            "A model that drafts tokens for vLLM's; no sync brings it, so none may change it.",
        ),
    ] = None,
    process: Annotated[
        Literal["in", "own", "server"],
        typer.Option(
            help="Where the engine runs: in this process; in its own, where it may die or hang, "
            "and vLLM and SGLang run with their schedulers; or as vLLM's HTTP server."
        ),
    ] = "in",
    compiled: Annotated[
        bool, typer.Option("--compile", help="Let vLLM compile the model; takes half a minute.")
    ] = False,
    folded: Annotated[
        bool,
        typer.Option("--fold", help="Let the compiler fold weights into its code, as constants."),
    ] = False,
    profile: Annotated[
        Literal["smoke", "production"],
        typer.Option(
            help="Which checks run: all of them, or those that a run can afford at every sync."
        ),
    ] = "smoke",
    cold_warm: Annotated[
        bool,
        typer.Option(
            "--cold-warm",
            help="At the end also compare with an engine that is started on the same weights.",
        ),
    ] = False,
    syncs: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="How many syncs; the last one sends the same weights again."
        ),
    ] = 3,
    bucket_mib: Annotated[
        float | None,
        typer.Option(
            min=0.001, metavar="N", help="Size of a bucket; by default a few buckets a sync."
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(min=0, max=2**31 - 1, metavar="N", help="Of all random choices."),
    ] = 0,
    fault: Annotated[
        str | None,
        naming(
            "NAME[@SITE]", "Arm a fault from before the first sync on: the checks must find it."
        ),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="PATH", help="Write the report as JSON.")
    ] = None,
    report_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Keep report.json, report.txt and verdicts.ndjson in a folder."
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Exit with 3 also if a condition does not apply or its coverage is not complete.",
        ),
    ] = False,
) -> None:
    """Sync real weights into a live engine, and give a verdict per condition.

    Exit codes: 0 all checks passed; 1 a condition is violated; 2 wrong usage; 3 something could
    not be checked; 4 internal error, or a --fault that changed nothing; 130 interrupted.
    """
    with exit_codes(), contextlib.ExitStack() as closing:
        if json is not None and report_dir is not None and json.resolve() == report_dir.resolve():
            raise UsageError(f"--json and --report-dir both name {str(json)!r}; give two paths")
        terminal = Terminal(standard_console(), standard_console(stderr=True), strict)
        closing.callback(terminal.close)
        listeners: list[Listener] = [terminal]
        if json is not None:
            listeners.append(ReportFile(json))
        if report_dir is not None:
            folder = ReportFolder(report_dir, strict)
            closing.callback(folder.close)
            listeners.append(folder)
        terminal.step("importing torch and the engine", 0, 0)

        from syncguard.smoke import Interrupted, SmokeOptions, run_smoke

        told = Broadcast(listeners)
        options = SmokeOptions(
            engine=engine,
            model=model or "",
            quantization=quantization,
            path=path,
            process=process,
            profile=profile,
            cold_warm=cold_warm,
            syncs=syncs,
            bucket_mib=bucket_mib,
            seed=seed,
            fault=fault or "",
            settings=_settings(
                ranks=tp, replicas=replicas, compiled=compiled, folded=folded, draft=draft or ""
            ),
        )
        try:
            report = run_smoke(options, told)
        except Interrupted as interrupted:
            report = interrupted.report
            told.finished(report)
        raise typer.Exit(exit_code(report, strict))


def _settings(**given: Any) -> dict[str, Any]:
    """Settings that are not the usual ones: not every engine takes them."""
    usual = {"ranks": 1, "replicas": 1, "compiled": False, "folded": False, "draft": ""}
    return {name: value for name, value in given.items() if value != usual[name]}
