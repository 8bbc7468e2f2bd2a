"""Chat templates: against jinja2 used as transformers does, llama.cpp's engine, and hostile templates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from anex.errors import InputError, UnsupportedError
from anex.models.chat import ChatTemplate, Limits, builtin, builtin_source, prompt_ids, read_template
from anex.models.tokenizer import Tokenizer

DATA = Path(__file__).parent.parent / "data/chat"
SOURCES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(DATA.glob("*.jinja"))}

USER = {"role": "user", "content": "  Who are you?\n"}
TURNS = [
    {"role": "user", "content": "Hello <|im_end|> </s> {{ bos_token }} {% if %}"},
    {"role": "assistant", "content": " Hi, \u00fcber \U0001f600 \"quoted\" 'n' <b>&amp;</b>"},
    USER,
]
SYSTEM = {"role": "system", "content": "Be brief."}
CONVERSATIONS = [[USER], TURNS, [SYSTEM, USER], [SYSTEM, *TURNS]]
TAKE_NO_SYSTEM = {"gemma", "gemma2", "mistral"}
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds <two> numbers & more.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
    },
}


def transformers_text(source: str, **variables: Any) -> str:
    """What transformers' apply_chat_template does, written down from its utils/chat_template_utils.py."""

    def raise_exception(message: str) -> None:
        raise ValueError(message)

    def to_json(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source).render(documents=None, **variables)


@pytest.fixture(scope="module")
def opened() -> Iterator[dict[str, ChatTemplate]]:
    """The templates of `SOURCES`, each with its process."""
    templates = {name: ChatTemplate(text, bos="<s>", eos="</s>") for name, text in SOURCES.items()}
    yield templates
    for template in templates.values():
        template.close()


@pytest.mark.parametrize("name", SOURCES)
def test_texts_are_those_of_transformers(name: str, opened: Mapping[str, ChatTemplate]) -> None:
    for messages in CONVERSATIONS:
        if messages[0] is SYSTEM and name in TAKE_NO_SYSTEM:
            with pytest.raises(InputError, match="refuses the conversation"):
                opened[name].render(messages)
            continue
        for prompt in (True, False):
            text = opened[name].render(messages, add_generation_prompt=prompt)
            assert text == transformers_text(
                SOURCES[name],
                messages=messages,
                tools=None,
                add_generation_prompt=prompt,
                bos_token="<s>",
                eos_token="</s>",
            )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("qwen2_5", "Adds <two> numbers & more."),
        ("llama3_2", "Adds <two> numbers & more."),
        ("mistral_nemo", "Adds <two> numbers & more."),
        ("smollm3", "/no_think"),
    ],
)
def test_tools_and_variables_reach_the_template(
    name: str, shown: str, opened: Mapping[str, ChatTemplate]
) -> None:
    more = {"tools": [TOOL], "enable_thinking": False, "date_string": "1 May 2025"}
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    text = opened[name].render([USER], **more)
    assert text == transformers_text(
        SOURCES[name], messages=[USER], add_generation_prompt=True, **tokens, **more
    )
    assert shown in text


@pytest.mark.parametrize(
    "case", json.loads((DATA / "llama_cpp.json").read_text()), ids=lambda c: c["template"]
)
def test_texts_are_those_of_llama_cpp(case: Mapping[str, Any]) -> None:
    with ChatTemplate(SOURCES[case["template"]], bos=case["bos"], eos=case["eos"]) as template:
        assert template.render(case["messages"]) == case["text"]


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("chatml", "chatml"),
        ("gemma", "gemma2"),
        ("llama3", "llama3"),
        ("mistral", "mistral"),
        ("phi3", "phi3_5"),
        ("zephyr", "zephyr"),
    ],
)
def test_builtin_templates_give_what_the_models_own_give(name: str, own: str) -> None:
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    with ChatTemplate(builtin_source(name), bos="<s>", eos="</s>") as template:
        for messages in CONVERSATIONS:
            if messages[0] is SYSTEM and own in TAKE_NO_SYSTEM:
                assert SYSTEM["content"] + "\n\n" in template.render(messages)
            else:
                variables = {"messages": messages, "add_generation_prompt": True, **tokens}
                assert template.render(messages) == transformers_text(SOURCES[own], **variables)


def test_builtin_templates_from_their_descriptions() -> None:
    # Meta's llama repository, generation.py, and FastChat's conversation.py.
    expected = {
        "llama2": "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nA [/INST] B </s><s>[INST] C [/INST]",
        "vicuna": "Be brief.\n\nUSER: A\nASSISTANT: B</s>\nUSER: C\nASSISTANT:",
    }
    words = [("user", "A"), ("assistant", "B"), ("user", "C")]
    messages = [SYSTEM, *({"role": role, "content": content} for role, content in words)]
    for name, text in expected.items():
        with ChatTemplate(builtin_source(name), bos="<s>", eos="</s>") as template:
            assert template.render(messages) == text
    with pytest.raises(InputError, match="there are chatml, llama2"):
        builtin_source("nothing")
    assert all(builtin().values())


def test_generation_blocks_and_loop_controls() -> None:
    source = (
        "{% for message in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}"
        "{% generation %}[{{ message['content'] }}]{% endgeneration %}{% if loop.index0 == 2 %}{% break %}"
        "{% endif %}{% endfor %}{{ strftime_now('%Y')|length }}"
    )
    with ChatTemplate(source, bos="", eos="") as template:
        assert template.render([{"role": "user", "content": text} for text in "abcd"]) == "[a][c]4"


# Templates that mean harm

TIME, LARGE = "more than 0.2 s of computing", "too large"
# Where the system has no limit of the address space, the text is too long or takes too long.
MEMORY = f"MiB of memory|characters of text|{TIME}"
NESTED = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
SQUARES = "{% set n = namespace(x=9) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}"
ADDING = "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}"
DOUBLING = "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
HOSTILE = {
    "loops": (NESTED, TIME),
    "a long range": ("{% for i in range(10**9) %}{% endfor %}", "[Rr]ange too big"),
    "repeats": ("{{ 'a' * 300000000 }}", LARGE),
    "repeats from the left": ("{{ 300000000 * ['a'] }}", LARGE),
    "power": ("{{ 10 ** (10 ** 7) }}", LARGE),
    "powers of powers": (SQUARES, LARGE),
    "adds": (ADDING, LARGE),
    "doubles": (DOUBLING, MEMORY),
    "pads": ("{{ 'a'|center(3000000000) }}", MEMORY),
    "formats": ("{{ '%3000000000d' % 1 }}", MEMORY),
    "writes much": ("{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}", "characters of text"),
    "class": ("{{ ''.__class__ }}", "__class__"),
    "class by filter": ("{{ ''|attr('__class__') }}", "__class__"),
    "class by format": ("{{ '{0.__class__}'.format('') }}", "__class__"),
    "globals": ("{{ raise_exception.__globals__ }}", "__globals__"),
    "init": ("{{ cycler.__init__.__globals__.os.system('true') }}", "__init__"),
    "self": ("{{ self._TemplateReference__context }}", "_TemplateReference__context"),
    "changes messages": ("{{ messages.append(1) }}", "append"),
}
WRONG = {
    "syntax": ("\n\n{% if %}", "line 3"),
    "unknown tag": ("{% frobnicate %}", "frobnicate"),
    "undefined": ("{{ nothing.there }}", "'nothing' is undefined"),
    "type": ("{{ 'a' + 1 }}", "TypeError"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "depth": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "RecursionError|it fails"),
    "files": ("{% include '/etc/passwd' %}", "no loader"),
    "raises": ("{{ raise_exception('only\nuser roles') }}", "refuses the conversation: only user roles"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_refused_by_name(name: str) -> None:
    source, reason = HOSTILE[name]
    limits = Limits(cpu_seconds=0.2, memory=256 << 20, characters=1 << 20)
    with ChatTemplate(source, bos="", eos="", limits=limits) as template:
        with pytest.raises(UnsupportedError, match=reason) as refusal:
            template.render([USER])
        assert refusal.value.exit_code == 2
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_templates_are_refused_by_name(name: str) -> None:
    source, reason = WRONG[name]
    with (
        ChatTemplate(source, bos="", eos="") as template,
        pytest.raises(InputError, match=reason) as refusal,
    ):
        template.render([USER])
    assert "\n" not in str(refusal.value)


def test_time_counts_for_each_render_and_the_process_starts_again() -> None:
    # A render that takes most of the allowance; three of them take more than one.
    source = "{% if messages[0].content == 'loop' %}" + NESTED + "{% endif %}{{ messages[0].content }}"
    limits = Limits(cpu_seconds=0.3)
    with ChatTemplate(source, bos="", eos="", limits=limits) as template:
        for _ in range(3):
            assert template.render([{"role": "user", "content": "ok"}]) == "ok"
            with pytest.raises(UnsupportedError, match="of computing"):
                template.render([{"role": "user", "content": "loop"}])
        assert template.render([{"role": "user", "content": "fine"}]) == "fine"


def test_a_process_serves_a_conversation_and_survives_errors() -> None:
    with ChatTemplate(SOURCES["mistral"], bos="<s>", eos="</s>") as template:
        assert template.render([USER]).startswith("<s>[INST]")
        process = template._child
        with pytest.raises(InputError, match="alternate"):
            template.render([USER, USER])
        long = {"role": "user", "content": "\u00e9 long " * 200_000}
        assert template.render([long]).count("\u00e9 long ") == 200_000
        assert template._child is process


def test_messages_that_are_none() -> None:
    with ChatTemplate("{{ messages }}", bos="", eos="") as template:
        for messages in ([{"content": "x"}], ["x"], [{"role": 3}]):
            with pytest.raises(InputError, match="message 0 has no role"):
                template.render(messages)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="written as JSON"):
            template.render([{"role": "user", "content": object()}])
        assert template.render([]) == "[]"


@pytest.mark.parametrize("source", ["", " \n", "x" * (1 << 20) + "y"])
def test_empty_and_endless_templates_are_refused(source: str) -> None:
    with pytest.raises(InputError, match="characters"):
        ChatTemplate(source, bos="", eos="")


# Where they are

GGUF = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["<s>", "</s>", "<unk>", "a"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.chat_template": "{{ bos_token }}|{{ eos_token }}",
    "tokenizer.chat_template.rag": "rag",
    "tokenizer.chat_templates": ["rag"],
}


def rendered(model: Any, **options: Any) -> str:
    with ChatTemplate.of(model, **options) as template:
        return template.render([])


def test_templates_of_gguf_files() -> None:
    assert rendered(GGUF) == "<s>|</s>"
    assert rendered(GGUF, name="rag") == "rag"
    assert rendered(GGUF, source="{{ eos_token }}!") == "</s>!"
    assert rendered({**GGUF, "tokenizer.ggml.eos_token_id": 99}) == "<s>|"
    # A file of the llama family that names no tokens has Llama's.
    llama = {key: value for key, value in GGUF.items() if "_token_id" not in key}
    assert rendered(llama | {"tokenizer.ggml.model": "llama"}) == "</s>|<unk>"
    with pytest.raises(UnsupportedError, match="there are default, rag"):
        ChatTemplate.of(GGUF, name="tool_use")
    with pytest.raises(UnsupportedError, match="--template"):
        ChatTemplate.of({})
    with pytest.raises(InputError, match="expected str, found int"):
        ChatTemplate.of({"tokenizer.chat_template": 3})


def folder(root: Path, **texts: Any) -> Path:
    for name, value in texts.items():
        path = root / name.replace("__", "/").replace("_json", ".json").replace("_jinja", ".jinja")
        path.parent.mkdir(exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return root


def test_templates_of_folders(tmp_path: Path) -> None:
    config: dict[str, Any] = {"bos_token": {"content": "<b>"}, "eos_token": "<e>"}
    folder(tmp_path, tokenizer_config_json=config | {"chat_template": "{{ bos_token }}{{ eos_token }}"})
    assert rendered(tmp_path) == "<b><e>"
    listed = [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}]
    folder(tmp_path, tokenizer_config_json=config | {"chat_template": listed})
    assert (rendered(tmp_path), rendered(str(tmp_path), name="tool_use")) == ("one", "two")
    folder(tmp_path, chat_template_json={"chat_template": "three"})
    assert rendered(tmp_path) == "three"
    folder(tmp_path, chat_template_jinja="four \u00fc", additional_chat_templates__rag_jinja="five")
    assert (rendered(tmp_path), rendered(tmp_path, name="rag")) == ("four \u00fc", "five")
    assert read_template(tmp_path / "chat_template.jinja") == "four \u00fc"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not an object"),
        ("[" * 100_000, "not JSON"),
        ({"chat_template": 3}, "neither"),
        ({"chat_template": [3]}, "neither"),
        ({"chat_template": [{"name": "a"}]}, "neither"),
        ({"chat_template": [{"name": "a", "template": 3}]}, "no text"),
        ({"bos_token": 3, "chat_template": "x"}, "'bos_token' is int"),
    ],
)
def test_bad_folders_are_refused(tmp_path: Path, config: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ChatTemplate.of(folder(tmp_path, tokenizer_config_json=config))


def test_folders_without_a_template(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no chat template"):
        ChatTemplate.of(folder(tmp_path, tokenizer_config_json={}))
    listed = [{"name": name, "template": name} for name in ("rag", "tool_use")]
    with pytest.raises(UnsupportedError, match="there are rag, tool_use"):
        ChatTemplate.of(folder(tmp_path, tokenizer_config_json={"chat_template": listed}))
    with pytest.raises(InputError, match="no such folder"):
        ChatTemplate.of(tmp_path / "nowhere")
    (tmp_path / "x.jinja").write_bytes(b"\xff")
    with pytest.raises(InputError, match="no UTF-8"):
        read_template(tmp_path / "x.jinja")


def test_a_prompt_has_one_beginning() -> None:
    tokens = ["<unk>", "<s>", "</s>", "\u2581", "a"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1],
    }
    adds = Tokenizer.from_gguf(metadata)
    assert prompt_ids(adds, "<s>a</s>") == prompt_ids(adds, "a</s>") == [1, 3, 4, 2]
    assert prompt_ids(adds, "") == [1]
    leaves = Tokenizer.from_gguf(metadata | {"tokenizer.ggml.add_bos_token": False})
    assert prompt_ids(leaves, "<s>a") == [1, 3, 4]
    assert prompt_ids(leaves, "a") == [3, 4]
