"""Libraries that would hand out other batches than the dataset's are refused, and those that hold batches cannot miscount."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from datapipe.errors import UserError
from datapipe.loader import Loader
from tests.support.late_import import late_import
from tests.support.loader_rows import first_tokens, steps_of
from tests.support.snapshots import make_snapshot

torch = late_import("torch")
torch_data = late_import("torch.utils.data")
accelerate = late_import("accelerate")
transformers = late_import("transformers")
lightning = late_import("lightning")
loader_torch = late_import("datapipe.loader.torch")
device = late_import("datapipe.loader.device")

pytestmark = [pytest.mark.needs("torch"), pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

S = 16
NUM_STEPS = 15
OPTIONS: dict[str, Any] = {"global_batch_size": 4, "fields": ("input_ids", "step")}
HELD = r"prefetch_to_device|DevicePrefetcher"


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("endless"), {"code": 31, "web": 83}, vocab_size=256)


def counting(output: Path, **options: Any) -> Any:
    return loader_torch.dataloader(output, **OPTIONS, **options)


def dataset_of(output: Path, **options: Any) -> Any:
    return loader_torch.StreamingDataset(output, **OPTIONS, **options)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dispatch", [None, True, False])
def test_accelerate_that_would_split_the_rows_of_a_rank_is_refused(
    output: Path, accelerator: Any, dispatch: bool | None, workers: int
) -> None:
    accelerator()
    options = {"num_processes": 2, "process_index": 0, "put_on_device": True, "dispatch_batches": dispatch}
    for batch_size in (None, 2):
        dataset = dataset_of(output, rank=0, world_size=2, samples=batch_size is not None)
        loader = torch_data.DataLoader(dataset, batch_size=batch_size, num_workers=workers)
        with pytest.raises(UserError, match=r"accelerator\.prepare takes as it is"):
            next(iter(accelerate.data_loader.prepare_data_loader(loader, **options)))


@pytest.mark.parametrize(
    "options", [{}, {"dispatch_batches": False}, {"split_batches": True}, {"use_stateful_dataloader": True}]
)
def test_accelerate_prepares_a_streaming_dataloader_as_it_is(output: Path, accelerator: Any, options: dict[str, Any]) -> None:
    """15 batches of which four make a step: the last step has three."""
    configuration = accelerate.DataLoaderConfiguration(**options)
    maker = accelerator(dataloader_config=configuration, gradient_accumulation_steps=4)
    loader = counting(output, rank=1, world_size=2)
    found, model = maker.prepare(loader, torch.nn.Linear(1, 1))
    assert found is loader
    seen, syncs = list[int](), list[int]()
    for batch in found:
        with maker.accumulate(model):
            seen.append(batch["step"])
            if maker.sync_gradients:
                syncs.append(batch["step"])
    assert (seen, syncs) == (list(range(NUM_STEPS)), [3, 7, 11, 14])


@pytest.mark.parametrize("workers", [0, 2])
def test_accelerate_saves_and_restores_the_position_and_may_not_skip_batches(
    output: Path, accelerator: Any, tmp_path: Path, workers: int
) -> None:
    maker = accelerator()
    loader = maker.prepare(counting(output, num_workers=workers))
    assert steps_of(loader, 4) == [0, 1, 2, 3]
    maker.save_state(str(tmp_path / "state"))
    assert steps_of(loader, 3) == [4, 5, 6]
    with pytest.raises(UserError, match="skip_first_batches"):
        next(iter(maker.skip_first_batches(loader, 3)))
    maker.load_state(str(tmp_path / "state"))
    assert steps_of(loader) == list(range(4, NUM_STEPS))


@pytest.mark.parametrize("stop", [4, 14, 99])
def test_dataset_under_accelerate_in_one_process_neither_miscounts_nor_goes_on_wrongly(
    output: Path, accelerator: Any, stop: int
) -> None:
    """Accelerate holds a batch, to know which is the last."""
    dataset = dataset_of(output)
    loader = accelerator().prepare(torch_data.DataLoader(dataset, batch_size=None))
    assert steps_of(loader, stop) == list(range(min(stop, NUM_STEPS)))
    for use in (dataset.state_dict, lambda: next(iter(loader))):
        with pytest.raises(UserError, match="DataLoaderDispatcher"):
            use()
    dataset.load_state_dict(dataset.state_dict(steps_done=4))
    assert steps_of(dataset) == list(range(4, NUM_STEPS))


def trainer_of(
    folder: Path, dataset: Any = None, loader: Any = None, num_steps: int = 2, **options: Any
) -> tuple[Any, list[Any]]:
    """A Trainer, and the batches that its model sees. With a loader, one of the user's own that does not skip batches."""
    config = transformers.GPT2Config(vocab_size=256, n_positions=S, n_embd=8, n_layer=1, n_head=1)
    given = {"save_strategy": "no", "per_device_train_batch_size": 4, **options}
    quiet = {"report_to": "none", "use_cpu": True, "disable_tqdm": True}
    arguments = transformers.TrainingArguments(output_dir=str(folder), max_steps=num_steps, **quiet, **given)

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return super().get_train_dataloader() if loader is None else loader

    trainer, seen = Trainer(transformers.GPT2LMHeadModel(config), arguments, train_dataset=dataset), list[Any]()
    trainer.model.register_forward_pre_hook(lambda _, args, named: seen.append(dict(named)), with_kwargs=True)
    return trainer, seen


RESUMING: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "ignore_data_skip": True}
CAUSAL: dict[str, Any] = {"batch_size": 4, "labels": "unshifted"}


@pytest.mark.needs("transformers", "accelerate")
@pytest.mark.parametrize("workers", [0, 1])
def test_hugging_face_trainer_takes_rows_in_its_own_batches_and_resumes_with_none_from_the_beginning(
    endless: Path, tmp_path: Path, accelerator: Any, workers: int
) -> None:
    def trainer(num_steps: int, batch_size: int = 4, samples: bool = True) -> tuple[Any, list[Any]]:
        dataset = loader_torch.StreamingDataset(endless, samples=samples, **CAUSAL)
        options = {"dataloader_num_workers": workers, "per_device_train_batch_size": batch_size, **RESUMING}
        return trainer_of(tmp_path, dataset, num_steps=num_steps, **options)

    for batch_size in (1, 4):
        with pytest.raises(UserError, match="get_train_dataloader"):
            trainer(2, batch_size, samples=False)[0].train()
    first, seen = trainer(2)
    first.train()
    assert first_tokens(seen) == first_tokens(islice(Loader(endless, batch_size=4), 2))
    with pytest.raises(UserError, match="resumes after step 2"):
        trainer(4)[0].train(resume_from_checkpoint=True)


@pytest.mark.needs("transformers", "accelerate")
@pytest.mark.parametrize("workers", [0, 1])
def test_hugging_face_trainer_that_resumes_without_the_state_of_its_loader_is_refused(
    endless: Path, tmp_path: Path, accelerator: Any, workers: int
) -> None:
    first, again, resumed, expected = (
        loader_torch.dataloader(endless, num_workers=workers, **CAUSAL) for _ in ("first", "again", "resumed", "expected")
    )
    trainer_of(tmp_path, loader=first, **RESUMING)[0].train()
    with pytest.raises(UserError, match="resumes after step 2"):
        trainer_of(tmp_path, loader=again, num_steps=4, **RESUMING)[0].train(resume_from_checkpoint=True)
    resumed.load_state_dict(first.state_dict())
    trainer, seen = trainer_of(tmp_path, loader=resumed, num_steps=4, **RESUMING)
    trainer.train(resume_from_checkpoint=True)
    assert first_tokens(seen) == first_tokens(islice(expected, 2, 4))
    again.load_state_dict(again.state_dict())  # on purpose
    trainer_of(tmp_path, loader=again, num_steps=6, **RESUMING)[0].train(resume_from_checkpoint=True)
    assert again.step == 2


def make_recorder() -> Any:
    """A Lightning module that notes the steps of its batches."""

    class Recorder(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.trained, self.validated = list[int](), list[list[int]]()

        def training_step(self, batch: Any, number: int) -> Any:
            self.trained.append(batch["step"])
            return self.layer(torch.ones(1, 1)).sum()

        def on_validation_epoch_start(self) -> None:
            self.validated.append([])

        def validation_step(self, batch: Any, number: int) -> None:
            self.validated[-1].append(batch["step"])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Recorder()


def fit(*loaders: Any, checkpoint: Path | None = None, saved: Path | None = None, **options: Any) -> Any:
    """The module after training over the loaders, from a checkpoint, and saved to one."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    module, trainer = make_recorder(), lightning.Trainer(accelerator="cpu", **quiet, **options)
    trainer.fit(module, *loaders, ckpt_path=checkpoint)
    if saved is not None:
        trainer.save_checkpoint(saved)
    return module


@pytest.mark.needs("lightning")
@pytest.mark.parametrize("workers", [{"num_workers": 0}, {"num_workers": 2, "persistent_workers": True}])
def test_lightning_goes_on_in_the_middle_of_an_epoch_and_repeats_no_epoch(
    output: Path, tmp_path: Path, workers: dict[str, Any]
) -> None:
    first = fit(counting(output, **workers), saved=tmp_path / "last.ckpt", max_steps=6)
    second = fit(counting(output, **workers), checkpoint=tmp_path / "last.ckpt", max_steps=99, max_epochs=3)
    assert first.trained + second.trained == list(range(NUM_STEPS))


@pytest.mark.needs("lightning")
def test_lightning_that_does_not_restore_a_loader_is_refused_unless_the_trainer_restores_it(
    endless: Path, tmp_path: Path
) -> None:
    """A checkpoint at the end of an epoch, with max_epochs."""
    options: dict[str, Any] = {"checkpoint": tmp_path / "last.ckpt", "limit_train_batches": 5, "max_epochs": 4}
    saved, restored = counting(endless), counting(endless)
    fit(saved, saved=tmp_path / "last.ckpt", max_steps=10, limit_train_batches=5)
    with pytest.raises(UserError, match="LightningDataModule"):
        fit(counting(endless), **options)
    restored.load_state_dict(saved.state_dict())
    assert fit(restored, **options).trained == list(range(10, 20))


@pytest.mark.needs("lightning")
def test_lightning_validates_whole_passes_after_its_sanity_check(output: Path) -> None:
    module = fit(counting(output), counting(output, split="validation"), max_steps=15, val_check_interval=5)
    assert module.validated == [[0, 1], [0, 1, 2], [0, 1, 2], [0, 1, 2]]
    assert module.trained == list(range(NUM_STEPS))


@pytest.mark.needs("lightning")
def test_lightning_without_an_end_needs_the_length_of_an_epoch(endless: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="limit_train_batches"):
        fit(counting(endless), max_steps=3)
    first = fit(counting(endless), saved=tmp_path / "last.ckpt", max_steps=8, limit_train_batches=5)
    second = fit(counting(endless), checkpoint=tmp_path / "last.ckpt", max_steps=17, limit_train_batches=5)
    assert first.trained + second.trained == list(range(17))
    dataset = dataset_of(endless)
    assert fit(torch_data.DataLoader(dataset, batch_size=None), max_steps=3).trained == [0, 1, 2]
    with pytest.raises(UserError, match="_PrefetchDataFetcher takes batches before"):
        dataset.state_dict()


@pytest.mark.parametrize("samples", [False, True])
def test_samplers_that_other_trainers_put_in_are_refused(output: Path, endless: Path, samples: bool) -> None:
    """As DeepSpeed does with `training_data`: a sampler over the length of the dataset, and its own batches."""
    for folder in (output, endless):
        for sample in (torch_data.RandomSampler, lambda each: torch_data.DistributedSampler(each, num_replicas=2, rank=1)):
            with pytest.raises(UserError, match="leave out training_data"):
                sample(dataset_of(folder, samples=samples))


@pytest.mark.parametrize("workers", [0, 1])
def test_dataset_that_was_made_before_the_process_group_is_refused(output: Path, begin_world: Any, workers: int) -> None:
    early = [counting(output, num_workers=workers), dataset_of(output)]
    told = counting(output, rank=0, world_size=1)
    begin_world(1, 2)
    for each in early:
        with pytest.raises(UserError, match="for rank 0 of 1; this process is rank 1 of 2"):
            next(iter(each))
    assert next(iter(told))["input_ids"].shape == (4, S)
    assert next(iter(counting(output)))["input_ids"].shape == (2, S)


@pytest.mark.parametrize("make", [counting, dataset_of])
def test_batches_that_are_held_for_the_device_are_not_left_out(output: Path, make: Any) -> None:
    loader = make(output)
    batches = device.prefetch_to_device(loader, "cpu", depth=3)
    assert steps_of(batches, 4) == [0, 1, 2, 3]
    for use in (loader.state_dict, lambda: next(iter(loader))):
        with pytest.raises(UserError, match=HELD):
            use()
    assert batches.state_dict()["step"] == 4
    assert steps_of(batches, 2) == [4, 5]
    batches.close()
    assert loader.state_dict()["step"] == 6
    assert steps_of(loader) == list(range(6, NUM_STEPS))
