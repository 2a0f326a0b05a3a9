import numpy as np
import pytest
import torch

from syncguard.engines.carrying import from_bytes, to_bytes
from syncguard.observations import QuantizedCanary


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.uint8])
def test_tensors_come_back_as_they_were(dtype: torch.dtype) -> None:
    elements = torch.arange(64).view(2, 32).to(dtype)
    sent = QuantizedCanary(elements, torch.ones(2, 1, dtype=torch.uint8), None)
    got = from_bytes(to_bytes((sent, {"rows": np.arange(3, dtype=np.uint64)})))
    assert got[0].elements.dtype == dtype
    assert torch.equal(got[0].elements.view(torch.uint8), elements.view(torch.uint8))
    assert got[1]["rows"].tolist() == [0, 1, 2]
