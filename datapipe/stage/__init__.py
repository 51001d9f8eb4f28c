"""The contract of a stage: the names that the author of a stage imports.

from datapipe.stage import DocumentBatch, Filter, FilterResult
"""

from datapipe.stage.base import Filter, FilterResult, Map, Rule, Stage, StageContext
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.global_stage import Global
from datapipe.stage.reader import FieldNames, FieldsSeen, InputFile, OpenInput, ReadBatch, Reader, Rejected, Split
