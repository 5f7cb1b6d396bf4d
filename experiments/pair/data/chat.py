"""Conversations as one text, in which special tokens mark who speaks."""

BEGIN_OF_SENTENCE = "<｜begin▁of▁sentence｜>"
END_OF_SENTENCE = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    f"{{% if message['role'] == 'user' %}}{{{{ '{USER}' + message['content'] }}}}"
    f"{{% elif message['role'] == 'assistant' %}}{{{{ '{ASSISTANT}' + message['content'] + eos_token }}}}"
    "{% else %}{{ raise_exception('roles are user and assistant, got ' + message['role']) }}{% endif %}"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{{{{ '{ASSISTANT}' }}}}{{% endif %}}"
)
"""Jinja template of `tokenizer_config.json`: renders a question and its answer as a training document is encoded."""


def conversation(question: str, answer: str) -> str:
    """The text of a `chat` document; its end of sentence is added when it is encoded, as to every document."""
    return f"{USER}{question}{ASSISTANT}{answer}"


def turns(text: str) -> tuple[str, str]:
    """Question and answer of a `chat` document."""
    question, _, answer = text.removeprefix(USER).partition(ASSISTANT)
    return question, answer
