"""Libraries that would hand out other batches than the dataset's are refused, and those that hold batches cannot miscount."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from datapipe.errors import DroppedRowsWarning, UserError
from datapipe.loader import Loader
from tests.support.late_import import late_import
from tests.support.loader_rows import first_tokens, steps_of
from tests.support.snapshots import make_snapshot

torch = late_import("torch")
torch_data = late_import("torch.utils.data")
stateful = late_import("torchdata.stateful_dataloader")
accelerate = late_import("accelerate")
transformers = late_import("transformers")
lightning = late_import("lightning")
loader_torch = late_import("datapipe.loader.torch")
device = late_import("datapipe.loader.device")

pytestmark = [pytest.mark.needs("torch"), pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

S = 16
NUM_STEPS = 15
OPTIONS: dict[str, Any] = {"global_batch_size": 4, "fields": ("input_ids", "step")}


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("endless"), {"code": 31, "web": 83}, vocab_size=256)


def prepared(dataset: Any, **options: Any) -> Any:
    """What Accelerate makes of a DataLoader on the first of two processes."""
    loader = torch_data.DataLoader(dataset, batch_size=options.pop("batch_size", None), num_workers=options.pop("workers", 0))
    return accelerate.data_loader.prepare_data_loader(loader, num_processes=2, process_index=0, put_on_device=True, **options)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dispatch", [None, True, False])
def test_accelerate_that_would_split_the_rows_of_a_rank_is_refused(
    output: Path, accelerator: Any, dispatch: bool | None, workers: int
) -> None:
    accelerator()
    for batch_size in (None, 2):
        dataset = loader_torch.StreamingDataset(output, **OPTIONS, rank=0, world_size=2, samples=batch_size is not None)
        loader = prepared(dataset, dispatch_batches=dispatch, workers=workers, batch_size=batch_size)
        with pytest.raises(UserError, match=r"accelerator\.prepare takes as it is"):
            next(iter(loader))


@pytest.mark.parametrize(
    "options", [{}, {"dispatch_batches": False}, {"split_batches": True}, {"use_stateful_dataloader": True}]
)
def test_accelerate_prepares_a_streaming_dataloader_as_it_is(output: Path, accelerator: Any, options: dict[str, Any]) -> None:
    configuration = accelerate.DataLoaderConfiguration(**options)
    loader = loader_torch.dataloader(output, **OPTIONS, rank=1, world_size=2)
    model = torch.nn.Linear(2, 2)
    found, _ = accelerator(dataloader_config=configuration).prepare(loader, model)
    assert found is loader
    assert steps_of(found, 4) + steps_of(found) == list(range(NUM_STEPS))


@pytest.mark.parametrize("workers", [0, 2])
def test_accelerate_saves_and_restores_the_position(output: Path, accelerator: Any, tmp_path: Path, workers: int) -> None:
    maker = accelerator()
    loader = maker.prepare(loader_torch.dataloader(output, **OPTIONS, num_workers=workers))
    assert steps_of(loader, 4) == [0, 1, 2, 3]
    maker.save_state(str(tmp_path / "state"))
    assert steps_of(loader, 3) == [4, 5, 6]
    maker.load_state(str(tmp_path / "state"))
    assert steps_of(loader) == list(range(4, NUM_STEPS))


def test_accelerate_steps_at_the_last_batch_of_a_run(output: Path, accelerator: Any) -> None:
    """15 batches of which four make a step: the last step has three."""
    maker = accelerator(gradient_accumulation_steps=4)
    model = torch.nn.Linear(1, 1)
    loader, model = maker.prepare(loader_torch.dataloader(output, **OPTIONS), model)
    syncs = []
    for batch in loader:
        with maker.accumulate(model):
            if maker.sync_gradients:
                syncs.append(batch["step"])
    assert syncs == [3, 7, 11, 14]


def test_accelerate_that_skips_batches_of_a_streaming_dataloader_is_refused(output: Path, accelerator: Any) -> None:
    maker = accelerator()
    loader = maker.prepare(loader_torch.dataloader(output, **OPTIONS))
    assert steps_of(loader, 3) == [0, 1, 2]
    with pytest.raises(UserError, match="skip_first_batches"):
        next(iter(maker.skip_first_batches(loader, 3)))
    assert steps_of(loader, 1) == [3]


@pytest.mark.parametrize("stop", [4, 14, 99])
def test_dataset_under_accelerate_in_one_process_neither_miscounts_nor_goes_on_wrongly(
    output: Path, accelerator: Any, stop: int
) -> None:
    """Accelerate holds a batch, to know which is the last."""
    dataset = loader_torch.StreamingDataset(output, **OPTIONS)
    loader = accelerator().prepare(torch_data.DataLoader(dataset, batch_size=None))
    assert steps_of(loader, stop) == list(range(min(stop, NUM_STEPS)))
    for use in (dataset.state_dict, lambda: next(iter(loader))):
        with pytest.raises(UserError, match="DataLoaderDispatcher"):
            use()
    dataset.load_state_dict(dataset.state_dict(steps_done=4))
    assert steps_of(dataset) == list(range(4, NUM_STEPS))


@pytest.mark.needs("torchdata")
def test_accelerate_with_a_stateful_dataloader_counts_in_one_process(output: Path, accelerator: Any) -> None:
    maker = accelerator(dataloader_config=accelerate.DataLoaderConfiguration(use_stateful_dataloader=True))
    datasets = [loader_torch.StreamingDataset(output, **OPTIONS) for _ in range(2)]
    first, second = (maker.prepare(torch_data.DataLoader(dataset, batch_size=None)) for dataset in datasets)
    assert steps_of(first, 5) == [0, 1, 2, 3, 4]
    second.load_state_dict(first.state_dict())
    assert steps_of(second) == list(range(5, NUM_STEPS))


def test_accelerate_may_split_what_one_reader_reads_for_all(output: Path, accelerator: Any) -> None:
    """One reader of whole global batches, whose batches Accelerate deals out: nothing is left out."""
    accelerator()
    found = []
    for process in range(2):
        dataset = loader_torch.StreamingDataset(output, **OPTIONS, rank=0, world_size=1, samples=True)
        options = {"num_processes": 2, "process_index": process, "put_on_device": False, "dispatch_batches": False}
        found += accelerate.data_loader.prepare_data_loader(torch_data.DataLoader(dataset, batch_size=2), **options)
    assert sorted(first_tokens(found)) == sorted(first_tokens(Loader(output, **OPTIONS)))


@pytest.mark.needs("transformers", "accelerate")
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("workers", [0, 1])
def test_hugging_face_trainer_that_makes_batches_of_batches_is_refused(
    endless: Path, tmp_path: Path, accelerator: Any, workers: int, batch_size: int
) -> None:
    dataset = loader_torch.StreamingDataset(endless, batch_size=4, labels="unshifted")
    options = {"per_device_train_batch_size": batch_size, "dataloader_num_workers": workers}
    with pytest.raises(UserError, match="get_train_dataloader"):
        trainer_of(tmp_path, dataset, **options)[0].train()


def trainer_of(
    folder: Path, dataset: Any = None, loader: Any = None, num_steps: int = 2, **options: Any
) -> tuple[Any, list[Any]]:
    """A Trainer, and the batches that its model sees. With a loader, one of the user's own that does not skip batches."""
    config = transformers.GPT2Config(vocab_size=256, n_positions=S, n_embd=8, n_layer=1, n_head=1)
    given = {"save_strategy": "no", "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, **options}
    quiet = {"report_to": "none", "use_cpu": True, "disable_tqdm": True}
    arguments = transformers.TrainingArguments(output_dir=str(folder), max_steps=num_steps, **quiet, **given)

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return super().get_train_dataloader() if loader is None else loader

    trainer, seen = Trainer(transformers.GPT2LMHeadModel(config), arguments, train_dataset=dataset), list[Any]()
    trainer.model.register_forward_pre_hook(lambda _, args, named: seen.append(dict(named)), with_kwargs=True)
    return trainer, seen


RESUMING: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "ignore_data_skip": True}


@pytest.mark.needs("transformers", "accelerate")
@pytest.mark.parametrize("workers", [0, 1])
def test_hugging_face_trainer_that_resumes_without_the_state_of_its_loader_is_refused(
    endless: Path, tmp_path: Path, accelerator: Any, workers: int
) -> None:
    def loader() -> Any:
        return loader_torch.dataloader(endless, batch_size=4, labels="unshifted", num_workers=workers)

    first, again, resumed = loader(), loader(), loader()
    trainer_of(tmp_path, loader=first, **RESUMING)[0].train()
    with pytest.raises(UserError, match="resumes after step 2"):
        trainer_of(tmp_path, loader=again, num_steps=4, **RESUMING)[0].train(resume_from_checkpoint=True)
    resumed.load_state_dict(first.state_dict())
    trainer, seen = trainer_of(tmp_path, loader=resumed, num_steps=4, **RESUMING)
    trainer.train(resume_from_checkpoint=True)
    assert first_tokens(seen) == first_tokens(islice(loader(), 2, 4))
    again.load_state_dict(again.state_dict())  # on purpose
    trainer_of(tmp_path, loader=again, num_steps=6, **RESUMING)[0].train(resume_from_checkpoint=True)
    assert again.step == 2


@pytest.mark.needs("transformers", "accelerate")
@pytest.mark.parametrize("workers", [0, 1])
def test_hugging_face_trainer_takes_rows_in_its_own_batches_and_resumes_with_none_from_the_beginning(
    endless: Path, tmp_path: Path, accelerator: Any, workers: int
) -> None:
    def trainer(num_steps: int) -> tuple[Any, list[Any]]:
        dataset = loader_torch.StreamingDataset(endless, batch_size=4, labels="unshifted", samples=True)
        return trainer_of(tmp_path, dataset, num_steps=num_steps, dataloader_num_workers=workers, **RESUMING)

    first, seen = trainer(2)
    first.train()
    assert first_tokens(seen) == first_tokens(islice(Loader(endless, batch_size=4), 2))
    with pytest.raises(UserError, match="resumes after step 2"):
        trainer(4)[0].train(resume_from_checkpoint=True)


@pytest.mark.needs("transformers", "accelerate")
def test_hugging_face_trainer_evaluates_the_whole_split_each_time(output: Path, tmp_path: Path, accelerator: Any) -> None:
    options: dict[str, Any] = {"global_batch_size": 4, "split": "validation", "labels": "unshifted"}
    trainer, _ = trainer_of(tmp_path)
    loader = loader_torch.dataloader(output, **options, num_workers=1)
    trainer.get_eval_dataloader = lambda _=None: loader
    seen: list[Any] = []
    trainer.model.forward = lambda input_ids, **_: seen.append(input_ids) or {"loss": input_ids.float().mean()}
    assert trainer.evaluate()["eval_loss"] == trainer.evaluate()["eval_loss"]
    assert first_tokens({"input_ids": ids} for ids in seen) == 2 * first_tokens(Loader(output, **options))


class Recorder:
    """Makes a Lightning module that notes the steps of its batches."""

    def __new__(cls) -> Any:
        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)
                self.trained: list[int] = []
                self.validated: list[list[int]] = []

            def training_step(self, batch: Any, number: int) -> Any:
                self.trained.append(batch["step"])
                return self.layer(torch.ones(1, 1)).sum()

            def on_validation_epoch_start(self) -> None:
                self.validated.append([])

            def validation_step(self, batch: Any, number: int) -> None:
                self.validated[-1].append(batch["step"])

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=0.1)

        return Module()


def fit(module: Any, *loaders: Any, checkpoint: Path | None = None, **options: Any) -> Any:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(accelerator="cpu", **quiet, **options)
    trainer.fit(module, *loaders, ckpt_path=checkpoint)
    return trainer


@pytest.mark.needs("lightning")
@pytest.mark.parametrize("workers", [{"num_workers": 0}, {"num_workers": 2, "persistent_workers": True}])
def test_lightning_goes_on_in_the_middle_of_an_epoch_and_repeats_no_epoch(
    output: Path, tmp_path: Path, workers: dict[str, Any]
) -> None:
    first, second = Recorder(), Recorder()
    fit(first, loader_torch.dataloader(output, **OPTIONS, **workers), max_steps=6).save_checkpoint(tmp_path / "last.ckpt")
    loader = loader_torch.dataloader(output, **OPTIONS, **workers)
    fit(second, loader, checkpoint=tmp_path / "last.ckpt", max_steps=99, max_epochs=3)
    assert first.trained + second.trained == list(range(NUM_STEPS))


@pytest.mark.needs("lightning")
def test_lightning_that_does_not_restore_a_loader_is_refused_unless_the_trainer_restores_it(
    endless: Path, tmp_path: Path
) -> None:
    """A checkpoint at the end of an epoch, with max_epochs."""
    options, epochs = {"batch_size": 4, "fields": ("step",)}, {"limit_train_batches": 5, "max_epochs": 4}
    saved = loader_torch.dataloader(endless, **options)
    fit(Recorder(), saved, max_steps=10, limit_train_batches=5).save_checkpoint(tmp_path / "last.ckpt")
    with pytest.raises(UserError, match="LightningDataModule"):
        fit(Recorder(), loader_torch.dataloader(endless, **options), checkpoint=tmp_path / "last.ckpt", **epochs)
    module, restored = Recorder(), loader_torch.dataloader(endless, **options)
    restored.load_state_dict(saved.state_dict())
    fit(module, restored, checkpoint=tmp_path / "last.ckpt", **epochs)
    assert module.trained == list(range(10, 20))


@pytest.mark.needs("lightning")
def test_lightning_validates_whole_passes_after_its_sanity_check(output: Path) -> None:
    module = Recorder()
    validation = loader_torch.dataloader(output, **OPTIONS, split="validation")
    fit(module, loader_torch.dataloader(output, **OPTIONS), validation, max_steps=15, val_check_interval=5)
    assert module.validated == [[0, 1], [0, 1, 2], [0, 1, 2], [0, 1, 2]]
    assert module.trained == list(range(NUM_STEPS))


@pytest.mark.needs("lightning")
def test_lightning_that_counts_batches_is_told_of_rows_that_are_left_out(tmp_path: Path) -> None:
    ending = make_snapshot(tmp_path, {"web": 83}, total_tokens=S * 63)
    module = Recorder()
    with pytest.warns(DroppedRowsWarning, match="3 rows") as told:
        fit(module, loader_torch.dataloader(ending, **OPTIONS), max_epochs=1)
    assert len([each for each in told if each.category is DroppedRowsWarning]) == 1
    assert module.trained == list(range(15))


@pytest.mark.needs("lightning")
def test_lightning_without_an_end_needs_the_length_of_an_epoch(endless: Path, tmp_path: Path) -> None:
    options = {"batch_size": 4, "fields": ("step",)}
    with pytest.raises(UserError, match="limit_train_batches"):
        fit(Recorder(), loader_torch.dataloader(endless, **options), max_steps=3)
    first, second = Recorder(), Recorder()
    fit(first, loader_torch.dataloader(endless, **options), max_steps=8, limit_train_batches=5).save_checkpoint(
        tmp_path / "last.ckpt"
    )
    loader = loader_torch.dataloader(endless, **options)
    fit(second, loader, checkpoint=tmp_path / "last.ckpt", max_steps=17, limit_train_batches=5)
    assert first.trained + second.trained == list(range(17))


@pytest.mark.needs("lightning")
def test_dataset_under_lightning_without_an_end_does_not_miscount(endless: Path) -> None:
    dataset = loader_torch.StreamingDataset(endless, batch_size=4, fields=("step",))
    module = Recorder()
    fit(module, torch_data.DataLoader(dataset, batch_size=None), max_steps=3)
    assert module.trained == [0, 1, 2]
    with pytest.raises(UserError, match="_PrefetchDataFetcher takes batches before"):
        dataset.state_dict()


@pytest.mark.parametrize("samples", [False, True])
def test_samplers_that_other_trainers_put_in_are_refused(output: Path, endless: Path, samples: bool) -> None:
    """As DeepSpeed does with `training_data`: a sampler over the length of the dataset, and batches of its own."""
    for folder in (output, endless):
        dataset = loader_torch.StreamingDataset(folder, **OPTIONS, samples=samples)
        for sample in (torch_data.RandomSampler, lambda each: torch_data.DistributedSampler(each, num_replicas=2, rank=1)):
            with pytest.raises(UserError, match="leave out training_data"):
                sample(dataset)


@pytest.mark.parametrize("workers", [0, 1])
def test_dataset_that_was_made_before_the_process_group_is_refused(output: Path, begin_world: Any, workers: int) -> None:
    early = [loader_torch.dataloader(output, **OPTIONS, num_workers=workers), loader_torch.StreamingDataset(output, **OPTIONS)]
    told = loader_torch.dataloader(output, **OPTIONS, rank=0, world_size=1)
    begin_world(1, 2)
    for each in early:
        with pytest.raises(UserError, match="for rank 0 of 1; this process is rank 1 of 2"):
            next(iter(each))
    assert next(iter(told))["input_ids"].shape == (4, S)
    assert next(iter(loader_torch.dataloader(output, **OPTIONS)))["input_ids"].shape == (2, S)


@pytest.mark.parametrize("kind", ["dataloader", "StreamingDataset"])
def test_batches_that_are_held_for_the_device_are_not_left_out(output: Path, kind: str) -> None:
    loader = getattr(loader_torch, kind)(output, **OPTIONS)
    batches = device.prefetch_to_device(loader, "cpu", depth=3)
    assert steps_of(batches, 4) == [0, 1, 2, 3]
    with pytest.raises(UserError, match=r"prefetch_to_device|DevicePrefetcher"):
        loader.state_dict()
    with pytest.raises(UserError, match=r"prefetch_to_device|DevicePrefetcher"):
        next(iter(loader))
    assert batches.state_dict()["step"] == 4
    assert steps_of(batches, 2) == [4, 5]
    batches.close()
    assert loader.state_dict()["step"] == 6
    assert steps_of(loader) == list(range(6, NUM_STEPS))
