"""The way of a user through the stock commands, as programs: data, training, kill, resume, averaging, BLEU.  Budget: 70 s.

Also fairseq-validate, fairseq-interactive, validation by BLEU in the middle of training, and the Python interface.
"""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
import sacrebleu
import torch
from stock_commands import (
    ROOT,
    TINY,
    argv_of,
    bleu,
    command,
    environment,
    forked,
    hypotheses,
    installed,
    numbered,
    omega_lines,
    preprocess,
    program,
    unchanged,
    weights,
)

KILLED_AT = 60  # 16 updates an epoch


class Flow:
    """One user's files: ``corpus``, ``databin``, ``save_dir``, ``average``; logs and what the killed run left."""


@pytest.fixture(scope="module")
def flow(corpus, tmp_path_factory):
    """Preprocess, train until killed, resume to the end, average: each step the command of the README."""
    flow = Flow()
    flow.corpus = corpus
    folder = tmp_path_factory.mktemp("flow")
    flow.databin = preprocess(command, corpus, folder / "databin")
    flow.save_dir = folder / "checkpoints"
    train = argv_of("train", flow.databin, *TINY, "--max-epoch", 20, "--save-dir", flow.save_dir)
    train[0] = installed(train[0])
    with open(folder / "first.log", "wb") as log:
        process = subprocess.Popen(train, env=environment(), stdout=log, stderr=log)
    flow.first_log = kill_outside_of_saving(process, folder / "first.log", KILLED_AT)
    flow.at_kill = weights(flow.save_dir / "checkpoint_last.pt")
    resumed = program(train)
    flow.second_log = resumed.text
    flow.average = folder / "average.pt"
    program(
        [sys.executable, ROOT / "scripts" / "average_checkpoints.py", "--inputs", flow.save_dir,
         "--num-epoch-checkpoints", 3, "--checkpoint-upper-bound", 20, "--output", flow.average]
    )  # fmt: skip
    generate = command("generate", flow.databin, "--path", flow.average, "--beam", 5, "--remove-bpe")
    flow.generated = generate.out
    return flow


def kill_outside_of_saving(process, log, update):
    """kill -9 once ``update`` is reached, at a moment when no checkpoint is being written; returns the log."""
    deadline = time.time() + 240
    while time.time() < deadline and process.poll() is None:
        time.sleep(0.02)
        if f"num_updates={update}," not in log.read_text():
            continue
        process.send_signal(signal.SIGSTOP)
        text = log.read_text()
        if text.count("Preparing to save checkpoint") == text.count("Saved checkpoint"):
            process.kill()
            assert process.wait() == -signal.SIGKILL
            return text
        process.send_signal(signal.SIGCONT)
    process.kill()
    raise AssertionError(f"was not killed at update {update}:\n{log.read_text()[-6000:]}")


def omegas(state):
    """``{name: omega's measured part}`` of a model's weights."""
    return {name: tensor for name, tensor in state.items() if name.endswith("_omega.init")}


def test_training_profiles_omega_and_logs_it_once(flow):
    lines = omega_lines(flow.first_log)
    assert [line.split(":")[0] for line in lines] == ["encoder", "decoder"]
    logged = [[float(number) for number in line.split(":")[1].split()] for line in lines]
    assert [len(numbers) for numbers in logged] == [2 * 2, 3 * 2]
    for numbers in logged:
        assert numbers[0] == 1.0 and all(a < b < 10 for a, b in zip(numbers, numbers[1:]))
    # the log tells what the checkpoint holds, in the order of the sub-layers
    for stack, sublayers, numbers in (
        ("encoder", ("self_attn", "ffn"), logged[0]),
        ("decoder", ("self_attn", "encoder_attn", "ffn"), logged[1]),
    ):
        stored = [flow.at_kill[f"{stack}.layers.{i}.{name}_omega.init"].item() for i in range(2) for name in sublayers]
        assert stored == pytest.approx(numbers, abs=6e-5)
    # measured before the first update: nothing is logged by then
    assert flow.first_log.index("ADMIN omega") < flow.first_log.index("train_inner")


def test_resume_keeps_omega_and_does_not_profile(flow):
    saved = re.findall(r"Saved checkpoint .* @ (\d+) updates", flow.first_log)[-1]
    loaded = re.search(r"Loaded checkpoint (\S+) \(epoch \d+ @ (\d+) updates\)", flow.second_log)
    assert loaded.groups() == (f"{flow.save_dir}/checkpoint_last.pt", saved)
    assert omega_lines(flow.second_log) == []
    final = weights(flow.save_dir / "checkpoint_last.pt")
    assert final["omega_profiled"] == 1 and flow.at_kill["omega_profiled"] == 1
    assert len(omegas(final)) == 10
    for name, value in omegas(flow.at_kill).items():
        assert torch.equal(final[name], value), name
        delta = name.replace(".init", ".delta")
        assert flow.at_kill[delta].abs().max() > 0 and not torch.equal(final[delta], flow.at_kill[delta])
    seen = [int(number) for number in re.findall(r"train_inner .*num_updates=(\d+)", flow.second_log)]
    assert int(saved) < seen[0] <= int(saved) + 10 and max(seen) == 320
    assert (flow.save_dir / "checkpoint20.pt").exists()


def test_generate_and_scores_agree(flow, tmp_path):
    out = flow.generated
    assert omega_lines(out) == []
    translations, references = numbered(out, "D"), numbered(out, "T")
    assert sorted(translations) == list(range(24)) == sorted(references)
    system = [translations[number].split("\t")[1] for number in range(24)]
    reference = [references[number] for number in range(24)]
    assert reference == (flow.corpus / "test.fr.txt").read_text(encoding="utf-8").splitlines()
    assert bleu(out) > 60, out[-300:]

    for name, lines in (("sys", system), ("ref", reference)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    scored = forked("score", "--sys", tmp_path / "sys", "--ref", tmp_path / "ref")
    assert bleu(scored.out) == bleu(out)
    # fairseq-score --sacrebleu does not work with sacreBLEU 2
    argv = [sys.executable, "-m", "sacrebleu", tmp_path / "ref", "-i", tmp_path / "sys", "--score-only", "--width", "4"]
    expected = float(program(argv).out)
    assert expected == pytest.approx(sacrebleu.corpus_bleu(system, [reference]).score, abs=1e-4)
    with unchanged(flow.average):
        direct = forked("generate", flow.databin, "--path", flow.average, "--remove-bpe", "--scoring", "sacrebleu")
    assert float(re.search(r"BLEU = ([\d.]+)", direct.out).group(1)) == pytest.approx(expected, abs=0.06)


def test_average_is_the_mean_of_the_last_epochs(flow):
    parts = [weights(flow.save_dir / f"checkpoint{epoch}.pt") for epoch in (18, 19, 20)]
    for name, value in weights(flow.average).items():
        mean = sum(part[name].double() for part in parts) / 3
        torch.testing.assert_close(value.double(), mean, rtol=1e-6, atol=1e-7, msg=lambda text, n=name: f"{n}: {text}")
    state = weights(flow.average)
    for name, value in omegas(parts[0]).items():
        assert state[name].item() == pytest.approx(value.item(), rel=1e-6)
    assert state["omega_profiled"] == 1


def test_validate_gives_training_s_own_loss(flow):
    last = flow.save_dir / "checkpoint_last.pt"
    with unchanged(last):
        done = command("validate", flow.databin, "--task", "translation", "--path", last, "--max-tokens", 400)
    text = done.text
    assert omega_lines(text) == []
    pattern = r"valid(?: \| epoch 020)? \| (?:valid on 'valid' subset \| )?loss ([\d.]+) \| nll_loss ([\d.]+)"
    assert re.findall(pattern, text)[-1] == re.findall(pattern, flow.second_log)[-1]


def test_interactive_reads_stdin(flow):
    lines = (flow.corpus / "test.en.txt").read_text(encoding="utf-8")
    done = command(
        "interactive", flow.databin, "--path", flow.average, "--beam", 5, "--bpe", "subword_nmt",
        "--bpe-codes", flow.corpus / "codes", "--buffer-size", 10, "--max-tokens", 400, stdin=lines,
    )  # fmt: skip
    translated, expected = numbered(done.out, "D"), numbered(flow.generated, "D")
    assert omega_lines(done.text) == []
    for number in range(24):
        assert translated[number].split("\t")[1] == expected[number].split("\t")[1]


def test_bleu_validation_in_the_middle_of_training(flow, tmp_path):
    """--eval-bleu translates between updates; the updates are the same as without it."""
    start = flow.save_dir / "checkpoint10.pt"
    common = [flow.databin, *TINY, "--restore-file", start, "--max-epoch", 11, "--log-interval", 1]
    plain = forked("train", *common, "--save-dir", tmp_path / "plain", "--disable-validation")
    scored = forked(
        "train", *common, "--save-dir", tmp_path / "scored", "--validate-interval-updates", 5,
        "--eval-bleu", "--eval-bleu-args", '{"beam": 3, "max_len_a": 1.2, "max_len_b": 10}',
        "--eval-bleu-remove-bpe", "--eval-bleu-print-samples", "--best-checkpoint-metric", "bleu",
        "--maximize-best-checkpoint-metric",
    )  # fmt: skip
    losses = [re.findall(r"train_inner .* loss=([\d.]+).*num_updates=(\d+)", done.text) for done in (plain, scored)]
    assert len(losses[0]) == 16 and losses[0] == losses[1]
    by_update = dict(re.findall(r"valid on 'valid' subset .*\| bleu ([\d.]+) .*\| num_updates (\d+)", scored.text)[::-1])
    scores = [float(score) for score in by_update]
    assert len(scores) >= 2 and max(scores) > 20, scored.text[-3000:]
    assert "example hypothesis: " in scored.text
    assert omega_lines(scored.text) == []
    for name, value in weights(tmp_path / "plain" / "checkpoint_last.pt").items():
        assert torch.equal(weights(tmp_path / "scored" / "checkpoint_last.pt")[name], value), name


@pytest.fixture(scope="module")
def hub(flow):
    from realformer_nmt.model import RealFormerModel

    return RealFormerModel.from_pretrained(
        str(flow.average.parent), flow.average.name, str(flow.databin), bpe="subword_nmt",
        bpe_codes=str(flow.corpus / "codes"),
    )  # fmt: skip


def test_translating_from_python(flow, hub):
    sentences = (flow.corpus / "test.en.txt").read_text(encoding="utf-8").splitlines()
    expected = numbered(flow.generated, "D")
    with unchanged(flow.average):
        translated = hub.translate(sentences, beam=5)
    assert translated == [expected[number].split("\t")[1] for number in range(24)]
    assert hub.translate(sentences[3]) == translated[3]
    torch.manual_seed(3)
    drawn = hub.sample(sentences, beam=1, sampling=True, sampling_topk=5, temperature=1.5)
    assert len(drawn) == 24 and drawn != translated
    hypotheses_ = hub.generate([hub.encode(sentence) for sentence in sentences[:3]], beam=4, nbest=4)
    assert [len(several) for several in hypotheses_] == [4, 4, 4]
    for number, several in enumerate(hypotheses_):
        scores = [hypothesis["score"].item() for hypothesis in several]
        assert scores == sorted(scores, reverse=True)


def test_scores_from_python_are_those_of_generate(flow, hub):
    found = hypotheses(flow.generated)
    for number, sentence in list(enumerate((flow.corpus / "test.en.txt").read_text("utf-8").splitlines()))[:6]:
        best = hub.generate(hub.encode(sentence), beam=5)[0]
        assert best["score"].item() / 0.6931471805599453 == pytest.approx(found[number][0][0], abs=1e-4)


def test_load_model_ensemble(flow, hub):
    from fairseq import checkpoint_utils

    (model, other), cfg = checkpoint_utils.load_model_ensemble([str(flow.average), str(flow.save_dir / "checkpoint20.pt")])
    assert type(model).__name__ == "RealFormerModel" and cfg.model.admin_init == "profile"
    assert not hasattr(cfg.model, "admin_omega")
    stored = weights(flow.average)
    for name, value in model.state_dict().items():
        assert torch.equal(value, stored[name]), name
    assert not all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))
    # a loaded model never profiles, not even in training mode
    before = {name: value.clone() for name, value in omegas(model.state_dict()).items()}
    model.train()
    tokens = torch.tensor([[5, 6, 7, 2]])
    model(tokens, torch.tensor([4]), torch.tensor([[2, 8, 9]]))
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
