"""The rows that a process of a torch DeviceMesh reads."""

from torch.distributed.device_mesh import DeviceMesh

from datapipe.errors import UserError
from datapipe.loader.share import ContextLayout, Mesh

DATA_DIMENSIONS = frozenset({"dp", "ddp", "dp_replicate", "dp_shard", "dp_shard_mod_ep", "dp_shard_in_ep", "fsdp", "hsdp"})
CONTEXT_DIMENSIONS = frozenset({"cp"})
SAME_ROWS_DIMENSIONS = frozenset({"tp", "pp", "ep", "sp", "etp"})
"""Names of the dimensions of a mesh, as torchtitan and others use them: dimensions that split the batch, dimensions that split
each row, and dimensions along which all processes read the same rows."""


def mesh_of(device_mesh: DeviceMesh, layout: ContextLayout = "contiguous") -> Mesh:
    """The rows that this process of a DeviceMesh reads, and its part of each row.

    The dimensions that split the batch make up the data rank, the first of them slowest; `cp` is the context rank. Processes
    that differ only along tensor, pipeline or expert dimensions get equal meshes, so they read the same rows.

        mesh = init_device_mesh("cuda", (2, 4, 8), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
        Loader("runs/x", global_batch_size=64, mesh=mesh_of(mesh))      on rank 45 = (1, 1, 5): data rank 5 of 8
    """
    names, coordinate = device_mesh.mesh_dim_names, device_mesh.get_coordinate()
    if not names:
        raise UserError(
            "the dimensions of the DeviceMesh have no names. Name them: init_device_mesh(…, mesh_dim_names=('dp', 'tp'))."
        )
    if coordinate is None:
        raise UserError("this process is not in the DeviceMesh, so it has no rows to read. Open the loader on its members.")
    ranks = {"data_rank": 0, "data_size": 1, "context_rank": 0, "context_size": 1}
    for name, rank, size in zip(names, coordinate, device_mesh.mesh.shape, strict=True):
        if name in DATA_DIMENSIONS:
            ranks["data_rank"], ranks["data_size"] = ranks["data_rank"] * size + rank, ranks["data_size"] * size
        elif name in CONTEXT_DIMENSIONS:
            ranks["context_rank"], ranks["context_size"] = ranks["context_rank"] * size + rank, ranks["context_size"] * size
        elif name not in SAME_ROWS_DIMENSIONS:
            known = sorted(DATA_DIMENSIONS | CONTEXT_DIMENSIONS | SAME_ROWS_DIMENSIONS)
            raise UserError(
                f"the DeviceMesh has a dimension '{name}', and the loader does not know whether it splits the batch. Expected "
                f"{', '.join(known)}. Rename the dimension, or construct a datapipe.loader.share.Mesh."
            )
    return Mesh(**ranks, layout=layout)
