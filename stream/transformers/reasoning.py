"""Find summaries that tell what an agent thought or wanted: nobody can see that from outside.

The question is who is the subject of a verb of mind, in whatever tense, mood or voice. So the
summary is first brought into plain words: look-alike characters become the letters that they look
like, and paths, options and numbers, which are no words, become `#`. All words are in tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

# --- the words --------------------------------------------------------------------------------

SUBJECTS = (
    *("agent", "assistant", "model", "llm", "ai", "bot", "subagent"),
    *("claude", "codex", "gemini", "copilot", "qwen", "opencode", "aider", "gpt", "chatgpt"),
)
_NAMES = r"(?:claude-code|gemini-cli|qwen-code|github-copilot|(?:chat)?gpt-[a-z0-9.]+)$"
PERSONS = ("he", "she", "we", "i")
_THINGS = "(?:it|they)"  #: or agents
_MANY = (*(f"{subject}s" for subject in SUBJECTS), "we", "i")
_NAMED = rf"(?:{'|'.join(SUBJECTS)})s?(?: code| cli)?"

#: verbs whose subject has a mind
VERBS = """
believe infer think decide conclude assume intend hope reason realize realise feel guess suspect
prefer presume suppose deduce surmise reckon speculate wonder doubt imagine wish worry desire
hallucinate
"""
#: the same, but a thing can do it as well: `it expects 3 words`
VERBS_OF_THINGS = """
want know understand misunderstand expect anticipate consider deem judge determine fear
misinterpret misjudge misread mistake figure recognize recognise notice remember forget interpret
perceive trust regret
"""
#: the same, where `to` follows: `tried to hide it`, but `tried 3 times`
VERBS_WITH_TO = """
want try attempt mean plan choose aim seek opt elect strive
"""
#: base, third person, past, participle, gerund
_IRREGULAR_VERBS = """
infer infers inferred inferred inferring
think thinks thought thought thinking
feel feels felt felt feeling
prefer prefers preferred preferred preferring
know knows knew known knowing
understand understands understood understood understanding
misunderstand misunderstands misunderstood misunderstood misunderstanding
misread misreads misread misread misreading
mistake mistakes mistook mistaken mistaking
forget forgets forgot forgotten forgetting
regret regrets regretted regretted regretting
mean means meant meant meaning
plan plans planned planned planning
choose chooses chose chosen choosing
seek seeks sought sought seeking
strive strives strove striven striving
"""
#: participles that tell somebody's mind about their own subject: `the agent is believed to …`
_ATTRIBUTED = (
    *("believed", "thought", "inferred", "assumed", "presumed", "suspected", "felt", "guessed"),
    *("concluded", "hoped", "deduced", "surmised", "reckoned"),
)
STATES = (
    *("convinced", "confident", "certain", "sure", "unsure", "uncertain", "aware", "unaware"),
    *("confused", "satisfied", "worried", "afraid", "willing", "unwilling", "reluctant", "eager"),
    *("curious", "mistaken", "hopeful", "inclined", "tempted", "motivated", "persuaded"),
    "suspicious",
)
NOUNS = (
    *("intent", "intention", "intentions", "reasoning", "belief", "beliefs", "goal", "goals"),
    *("motive", "motives", "motivation", "thinking", "thoughts", "opinion", "mind", "desire"),
    *("assumption", "assumptions", "inference", "inferences", "suspicion", "suspicions"),
)
_NOUNS_OF_PERSONS = (  # and not of a thing: `its purpose`
    *("conclusion", "conclusions", "understanding", "expectation", "expectations", "guess"),
    *("hope", "hopes", "wish", "wishes", "aim", "purpose", "objective", "rationale", "feeling"),
    *("feelings", "preference", "view", "thought", "fear", "fears", "confidence", "conviction"),
)
INTENTS = (
    *("deliberately", "intentionally", "unintentionally", "purposely", "purposefully"),
    *("knowingly", "unknowingly", "wilfully", "willfully", "mistakenly", "consciously"),
)
_HELD_IN_MIND = (
    *("intention", "intent", "desire", "wish", "motive", "idea", "hope", "doubt", "feeling"),
    *("belief", "suspicion", "impression", "hunch", "fear"),
)
_PHRASES = (  # of somebody in the same sentence
    r"(?:in|on|under) the (?:hope|hopes|belief|expectation|assumption|impression)",
    r"with (?:the |an? )?(?:intent|intention|hope)",
    r"with (?:the|an?) (?:aim|goal) (?:of|to)",
    r"of the (?:opinion|belief|view)",
    r"(?:came|comes?|coming|jumped|jumps) to (?:the|a|this) conclusion",
    r"(?:made|makes?|making) (?:the|an?|this|that)(?: [a-z]+)? (?:assumption|guess|inference)",
    r"out of (?:fear|concern|worry|curiosity)",
    r"(?:saw|sees?|seeing) no (?:need|point|reason)",
    r"(?:has|had|have|having) in mind",
    r"(?:takes?|took|taken|taking)(?: [a-z]+){1,3} for granted",
    r"convinced? (?:itself|himself|themselves)",
    r"(?:changed|changes|made up|makes up) (?:its|his|her|their) mind",
    rf"(?:has|had|have|having|with) (?:no |the |an? |any |every )?(?:{'|'.join(_HELD_IN_MIND)})",
)

# --- plain words ------------------------------------------------------------------------------

#: letters of other scripts, by what they look like
_LOOKS = (
    "аa вb сc ԁd еe ғf һh нh іi їi јj кk ӏl мm оo пn рp ԛq гr ѕs тt уy ѵv ԝw хx иu зe",
    "αa βb εe γy ηn ιi κk νv οo ρp τt υu ωw χx σo ϲc ıi ɑa ɡg ɩi łl øo đd ɛe ƒf ʋv օo ոn սu հh",
    "ᴀa ʙb ᴄc ᴅd ᴇe ꜰf ɢg ʜh ɪi ᴊj ᴋk ʟl ᴍm ɴn ᴏo ᴘp ʀr ꜱs ᴛt ᴜu ᴠv ᴡw ʏy ᴢz",
    '’\' ‘\' ʼ\' ′\' “" ”" „" «" »" ‐- ‑- −-',
)
_LETTERS = str.maketrans({pair[0]: pair[1] for row in _LOOKS for pair in row.split()})
_DASHES = str.maketrans(dict.fromkeys("—–…", " , "))
#: one form for characters that are taken for each other, digits among them
_FORM = str.maketrans(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZi10345" + "7", "abcdefghljklmnopqrstuvwxyzlloeas" + "t"
)
_LONGEST_NAME = 200
_WRAPPING = "\"'`*_()[]{}<>"
_SHORTENED = r"(it|he|she|they|we|i)'(s|re|m|ve|d)"
_SHORT_FOR = {"s": "is", "re": "is", "m": "is", "ve": "have", "d": "have"}
#: what an option is given in quotes: `git commit -m "agent believed"`
_ARGUMENT = re.compile(
    r"(?<!\S)(--?[a-z][a-z-]*)[ =]\s*(\\?[\"'])(?=\S).{1,300}?(?<=\S)\2(?=[\s,.;:)]|$)"
)
_WORD = r"[a-z]+(?:'[a-z]+)?"
_MANGLED = r"(?=.*[a-z])[a-z0-9][a-z0-9-]*"
#: the same of bytes, where all but letters parts words
_WORDS = bytes(
    ord(form) if (form := chr(byte).translate(_FORM)).isascii() and form.isalpha() else 0x20
    for byte in range(256)
)


def find_reasoning(summary: str, name: str = "") -> str | None:
    """Find the words that tell what an agent thought. `name` is the agent's own.

    Most summaries have none of the words: to look at them costs a tenth of the whole search.
    """
    text = summary if summary.isascii() else _legible_text(summary)
    if _reasoning_triggers().isdisjoint(text.encode(errors="replace").translate(_WORDS).split()):
        return None
    text = _ARGUMENT.sub(r" \1 # ", text.lower()).replace("(s)", "s").replace("(d)", "d")
    plain = _plain_sentence(text, "" if name in SUBJECTS or len(name) > _LONGEST_NAME else name)
    for sentence in f" {plain} ".replace(" . ", " \n ").splitlines():
        patterns = _reasoning_patterns()
        if re.search(rf" {_NAMED} ", sentence):
            patterns += _patterns_near_agent()
        for pattern in patterns:
            if found := pattern.search(sentence):
                return found[0].strip()
    return None


def _legible_text(text: str) -> str:
    """Write a text in the Latin letters that others look like, without what is not seen at all."""
    import unicodedata  # which most summaries do not need

    text = unicodedata.normalize("NFKD", text.translate(_DASHES)).casefold()
    seen = (char for char in text if unicodedata.category(char) not in ("Mn", "Cf"))
    return "".join(seen).translate(_LETTERS)


def _plain_sentence(text: str, name: str) -> str:
    """Write a text as words, `#` for what is none, and the ends of clauses, parted by spaces."""
    if name and (parts := re.split(r"[\s_-]+", _legible_text(name))) != [""]:
        agent_name = r"[\s_-]+".join(map(re.escape, parts))
        text = re.sub(rf"(?<![\w./=-]){agent_name}(?![\w/=-])", " agent ", text)
    return " ".join(token for word in text.split() for token in _tokens_of_word(word))


def _tokens_of_word(word: str) -> Iterator[str]:
    """Yield the plain words of one word of a summary, and the marks of clauses around it."""
    if set(word) <= {"-", ","}:
        yield ","
        return
    head = word.lstrip(_WRAPPING)
    core = head.rstrip(_WRAPPING + ".,;:!?")
    tail = head[len(core) :]
    if "(" in word[: len(word) - len(head)]:
        yield "("
    if short := re.fullmatch(_SHORTENED, core):
        yield from (short[1], _SHORT_FOR[short[2]])
    elif made := re.match(_compound(), head):
        yield from ("agent", made[1] or made[2])
    elif core:
        yield _plain_word(core)
    if ")" in tail:
        yield ")"
    if set(tail) & set(".;!?"):
        yield "."
    elif set(tail) & set(",:"):
        yield ","


def _plain_word(core: str) -> str:
    """Return a summary's word as the patterns know it: `agent` for names, `#` for no word."""
    known = _reasoning_vocabulary()
    if re.fullmatch(_WORD, core):
        is_sure = len(core) < 4 or core in known
        return core if is_sure else known.get(core.translate(_FORM), core)
    if set(core.split("/")) <= set(SUBJECTS):
        return "agent"
    if re.match(_NAMES, core) or (core.rpartition("-")[2] in SUBJECTS and core[0].isalnum()):
        is_word = re.fullmatch(r"[a-z0-9.-]+", core)
        return "agent" if is_word else "#"
    if re.fullmatch(_MANGLED, core):
        return known.get(core.replace("-", "").translate(_FORM), "#")
    return "#"


# --- the patterns -----------------------------------------------------------------------------


_IRREGULAR = {row[0]: row for row in map(str.split, _IRREGULAR_VERBS.strip().splitlines())}


def conjugate_verb(base: str) -> Sequence[str]:
    """Return a verb's base, third person, past, participle and gerund."""
    if base in _IRREGULAR:
        return _IRREGULAR[base]
    stem = base.removesuffix("e")
    if base.endswith("y"):
        third, past = f"{base[:-1]}ies", f"{base[:-1]}ied"
    else:
        third, past = f"{base}{'es' if base.endswith(('s', 'sh')) else 's'}", f"{stem}ed"
    return base, third, past, past, f"{stem}ing"


def _verb_forms(table: str, *columns: int) -> list[str]:
    rows = map(conjugate_verb, table.split())
    return [row[column] for row in rows for column in columns]


_ALL = VERBS + VERBS_OF_THINGS + VERBS_WITH_TO
BASES = tuple(dict.fromkeys(_verb_forms(_ALL, 0)))


@cache
def _reasoning_triggers() -> frozenset[bytes]:
    """Return the words of which a summary has at least one if it tells what an agent thought."""
    phrases = (
        *_HELD_IN_MIND,
        "expectation",
        "conclusion",
        "hopes",
        "concern",
        "curiosity",
        "need",
        "point",
        "granted",
    )
    words = (*_verb_forms(_ALL, 0, 1, 2, 3, 4), *STATES, *NOUNS, *_NOUNS_OF_PERSONS, *INTENTS)
    return frozenset(word.translate(_FORM).encode() for word in (*words, *phrases))


@cache
def _reasoning_vocabulary() -> dict[str, str]:
    """Map every word that a pattern asks for, and its form, to the word."""
    words = (*SUBJECTS, *PERSONS, "it", *_verb_forms(_ALL, 0, 1, 2, 3, 4), *STATES, *NOUNS)
    words += (*_NOUNS_OF_PERSONS, *INTENTS, *(f"{subject}s" for subject in SUBJECTS))
    return {word.translate(_FORM): word for word in words} | {word: word for word in words}


@cache
def _compound() -> str:
    """Return the pattern of `agent-believed`, and of `agent_believed=yes`, which only names
    something where it has no value."""
    named, past = _any(*SUBJECTS), _any(*_verb_forms(_ALL, 2))
    return rf"{named}-({past})\W*$|{named}_({past})[=:]"


def _any(*words: str) -> str:
    return f"(?:{'|'.join(words)})"


@cache
def _reasoning_patterns() -> tuple[re.Pattern[str], ...]:
    """Make the patterns of one sentence in plain words, with a space before and after each."""
    needing = _any(  # what a verb in its base form needs
        *("to", "will", "would", "shall", "should", "can", "could", "may", "might", "must"),
        *("do", "does", "did", "cannot", r"[a-z]+n't"),
    )
    light = _any(  # what may stand between a subject and its verb
        *(needing, "has", "had", "have", "having", "not", "never", "no", "longer", "[a-z]+ly"),
        *("seems?", "seemed", "appears?", "appeared", "itself", "himself", "themselves", "who"),
        *("which", "that", "then", "also", "first", "later", "now", "still", "just", "even", "so"),
        *("already", "again", "once", "only", "very", "quite", "rather", "perhaps", "maybe"),
        *("always", "often", "soon", "there", "therefore", "thus", "here", "too", "#", ","),
    )
    insertion = (  # `(claude 2.1)`, `, after a while ,`, `in this run`
        r"(?: \((?: [^ ().]+){0,8} \)| ,(?: [^ ().,]+){1,8} ,"
        r"| (?:in|of|on|at|under|behind|during|from) (?:this|that|the|these|each|#)"
        r"(?: [a-z]+){0,2})"
    )
    gap = rf"(?: {light}){{0,6}}(?:{insertion}(?: {light}){{0,4}})?"
    adverbs = rf"(?: {light}){{0,4}}"
    be = _any("is", "are", "was", "were", "be", "been", "being", "am", "isn't", "wasn't", "aren't")
    like = _any("seem", "appear", "look", "feel", "become", "grow", "felt", "became", "grew", "got")

    def verb(column: int, *columns: int, things: str = VERBS_OF_THINGS) -> str:
        """Make the pattern of a verb with its object."""
        to = _any(*_verb_forms(VERBS_WITH_TO, column, *columns)) + " (?:not )?to"
        end = "(?! (?:by|with|after|at|early|normally) )"  # `concluded with exit code 0`
        end += "(?!(?<= intended) for (?!(?:[^ ]+ ){1,6}to ))"  # `intended for review`
        return rf" (?:{_any(*_verb_forms(VERBS + things, column, *columns))}{end}|{to})"

    named, somebody = _NAMED, rf" (?:{_NAMED}|{_any(*PERSONS)})"
    participle = _any(*_verb_forms(VERBS, 3), "wanted", "meant")
    core, nouns = _any(*NOUNS), _any(*NOUNS, *_NOUNS_OF_PERSONS)
    no_setting = r"(?! (?:effort|tokens?|budget|level|mode|output|off|on|high|low|files?|#) )"
    return _compiled(
        # it believed, was believing, is believed to, is convinced
        rf"{somebody}{gap}{verb(1, 2)}",
        rf"{somebody}{gap} (?:has|have|had){adverbs}{verb(3)}",
        rf"{somebody}{gap} {be}{adverbs}{verb(4)}",
        rf"{somebody}{gap} {be}{adverbs} {_any(*_ATTRIBUTED)}(?= to )",
        rf"{somebody}{gap} (?:{be}|{like}(?:s|ed)?){adverbs} (?:{_any(*STATES)}|determined to)",
        # it would believe, they believe, this made it believe
        rf"{somebody}(?: {light}){{0,5}} {needing}{adverbs}{verb(0)}",
        rf" {_any(*_MANY)}(?: [a-z]+ly| also| not){{0,3}}{verb(0)}",
        rf" (?:made|makes?|making|lets?|helped|saw)(?: the| an?| this)? {_any(*SUBJECTS)}{verb(0)}",
        # of what may be a thing as well
        rf" {_THINGS}{gap}{verb(1, 2, things='')}",
        rf" {_THINGS}{adverbs} {needing}{adverbs}{verb(0, things='')}",
        rf" they{adverbs}{verb(0, things='')}",
        rf" {_THINGS}{adverbs} {be}{adverbs}(?:{verb(4, things='')}| {participle} (?:that|to))",
        # by whom; and who stopped and decided
        rf" {participle}(?: [a-z]+ly| of| upon| about| so| ,){{0,4}} by(?: [a-z]+){{0,3}} {named}",
        rf" {_any(*_verb_forms(VERBS, 2))}(?: the)? {named}(?= ,| $)",  # thought the agent
        rf" {named}(?: [^ ]+){{1,12}} (?:and|but|then|or|yet){adverbs}{verb(1, 2)}",
        # whose
        rf" {named}(?:'s|s')(?: [a-z]+)? {nouns}{no_setting}",
        rf" (?:its|his|her|their|whose)(?: own| true| real)? {core}{no_setting}",
        rf" {_any(*_MANY[:-2])} {nouns}{no_setting}",
        rf" {_any(*SUBJECTS)} (?:intent|intentions?|beliefs?|motives?|motivation)",
        rf" (?:{core}|conclusions?|understanding|expectations?)(?: [a-z]+){{0,2}}"
        rf" (?:of|by|from|behind)(?: the| an?| this| that)?(?: [a-z]+)? {named}(?:'s)?",
    )


@cache
def _patterns_near_agent() -> tuple[re.Pattern[str], ...]:
    """Make the patterns of a sentence that has an agent in it, wherever."""
    ambiguous = ("thinking", "reasoning", "feeling")
    gerunds = [form for form in _verb_forms(VERBS, 4) if form not in ambiguous]
    thinking = " thinking (?:that|the|it|this|there)"
    having = rf" having(?: [a-z]+ly)? {_any(*_verb_forms(VERBS, 3))}"
    states = [state for state in STATES if state not in ("certain", "sure")]
    first = rf"^(?: #)?(?: [a-z]+ly)? {_any(*states)}(?: [^ ,]+){{0,10}} ,(?: the| an?)? {_NAMED}"
    words = rf" {_any(*gerunds, 'wanting', *INTENTS, *_PHRASES)}"
    return _compiled(words, thinking, having, first)


def _compiled(*sources: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(f"(?:{source})(?= )") for source in sources)
