"""The loader for torch: datasets for a `DataLoader`, and the rows of a process in a DeviceMesh."""

try:
    import torch  # noqa: F401 - the modules below need it
except ImportError as error:
    raise ImportError("datapipe.loader.torch needs torch: pip install datapipe[torch]") from error

from datapipe.loader.torch.dataset import StreamingDataset
from datapipe.loader.torch.mesh import mesh_of
from datapipe.loader.torch.tensor_batch import TensorBatch

__all__ = ["StreamingDataset", "TensorBatch", "mesh_of"]
