"""A model for lm-evaluation-harness: runs any of its tasks, with the sinks dropped or in another
mode.

    from memsinks_jax.measures.lm_evaluation import HarnessModel
    lm_eval.simple_evaluate(HarnessModel(open_run(pathlib.Path("runs/sinks"))),
    tasks=["lambada_openai"])

Where the harness finds models by entry point (versions after 0.4.13), its command line does the
same:

    lm-eval run --model memsinks --model_args workdir=runs/sinks,sinks=drop --tasks lambada_openai

Needs the extra `lm-eval`; nothing else of the package imports this file.
"""

import pathlib

import numpy as np
from lm_eval.api.model import LM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, simple_parse_args_string

from memsinks_jax.config import InputError
from memsinks_jax.measures import forced
from memsinks_jax.measures.documents import BATCH_SIZE, Documents
from memsinks_jax.measures.subjects import Subject, shortened
from memsinks_jax.model.generation import Generator, Settings
from memsinks_jax.models.trained import Trained, open_run

_MOST_WRITTEN = 256  # tokens of an answer, if the task gives no limit


class HarnessModel(LM):
    """Answers the harness's three kinds of requests.

    Args:
      mode: of the sinks, `drop` or `all`: a task's texts are not training documents and have no own
        sinks.
    """

    def __init__(self, run: Trained, mode: str = "drop"):
        super().__init__()
        if mode not in ("drop", "all"):
            raise InputError(f"sinks={mode!r}: choose drop or all")
        self._subject, self._tokenizer = Subject("", run, mode), run.tokenizer
        self._length = run.config.data.row_length
        self._generator = Generator.of(run)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict, additional_config: dict | None = None
    ) -> "HarnessModel":
        """Opens the model of the harness's `model_args`: `workdir`, and `sinks` if not dropped.

        `additional_config` names device and batch size; here the devices are jax's, and their
        memory limits the batch.
        """
        unknown = arg_dict.keys() - {"workdir", "sinks"}
        if unknown or "workdir" not in arg_dict:
            raise InputError(
                f"model_args={arg_dict}: give workdir=RUN, and sinks=drop or sinks=all"
            )
        return cls(open_run(pathlib.Path(arg_dict["workdir"])), arg_dict.get("sinks", "drop"))

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict | None = None
    ) -> "HarnessModel":
        """The same for `model_args` as text: `workdir=RUN,sinks=drop`."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    def loglikelihood(self, requests) -> list[tuple[float, bool]]:
        """(context, continuation) -> (log-probability of the continuation, whether greedy decoding
        would give it).
        """
        asked = []
        for request in requests:
            context, continuation = request.args
            whole, known = (
                self._tokenizer.encode(text) for text in (context + continuation, context)
            )
            # A token may span both texts: what follows the context's own tokens is the
            # continuation.
            asked.append((whole, len(whole) - min(len(known), len(whole) - 1)))
        return self._score(
            [([self._tokenizer.begin_of_text, *whole], count) for whole, count in asked]
        )

    def loglikelihood_rolling(self, requests) -> list[float]:
        """(text,) -> log-probability of all of its tokens; long texts in windows, each token
        predicted once.
        """
        totals = []
        for request in requests:
            tokens = self._tokenizer.encode(request.args[0]).tolist()
            windows = map(
                make_disjoint_window,
                get_rolling_token_windows(
                    tokens,
                    self._tokenizer.begin_of_text,
                    max_seq_len=self._length - 1,
                    context_len=1,
                ),
            )
            scored = self._score(
                [([*before, *predicted], len(predicted)) for before, predicted in windows]
            )
            totals.append(sum(log for log, _ in scored))
        return totals

    def generate_until(self, requests) -> list[str]:
        """(context, settings) -> the continuation of the context, up to one of
        settings["until"].
        """
        answers = []
        for request in requests:
            context, settings = request.args
            most = min(settings.get("max_gen_toks", _MOST_WRITTEN), self._length // 2)
            known = self._tokenizer.encode(context)
            room = self._length - most - 1
            prompt = context if len(known) <= room else self._tokenizer.decode(known[-room:])
            chosen = Settings(
                max_tokens=most,
                temperature=settings.get("temperature", 0.0),
                sinks=self._subject.mode,
            )
            (written,) = self._generator([prompt], chosen)
            text = written.text
            until = settings.get("until") or []
            for stop in [until] if isinstance(until, str) else until:
                text = text.split(stop)[0] if stop else text
            answers.append(text)
        return answers

    def _score(self, asked: list[tuple[list[int], int]]) -> list[tuple[float, bool]]:
        """Rows, and how many of their last tokens count -> (sum of log-probabilities, whether all
        are most likely).
        """
        results = []
        for at in range(0, len(asked), BATCH_SIZE):
            part = [(row[-self._length :], count) for row, count in asked[at : at + BATCH_SIZE]]
            documents = Documents(
                [np.array(row[1:], np.int32) for row, _ in part],
                np.zeros((len(part), 2), np.uint32),
                opened=np.zeros(len(part), bool),
                around=[(row[0], self._tokenizer.end_of_text) for row, _ in part],
            )
            (subject,) = shortened([self._subject], max(map(len, documents.tokens)))
            for reading, (_, count) in zip(forced.read(subject, documents), part, strict=True):
                last = reading.of(slice(-count, None))
                results.append((-float(last.nats.sum()), bool(last.likeliest.all())))
        return results
