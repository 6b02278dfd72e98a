"""Prose whose content stands in the question: records put in order or compared, stories, letters.

What is asked for is drawn anew for every sample, so nothing can be learnt by heart: the answer
copies names and numbers, sorts them and draws conclusions.
"""

from __future__ import annotations

import random

from dartree.training.stories import FRIENDS, PEOPLE

NAMES = tuple(name for group in PEOPLE.values() for name in group) + tuple(FRIENDS)
PLACES = (
    "Oslo Rome Lima Cairo Delhi Quito Turin Basel Kyoto Perth Leeds Porto Riga Bergen Dakar Tunis "
    "Havana Boston Denver Malaga"
).split()
# what is compared: plural, unit, low and high, more, most, less, least, kinds of records
QUALITIES = (
    ("age", "years", 4, 90, "older", "the oldest", "younger", "the youngest", "people"),
    ("height", "centimetres", 95, 199, "taller", "the tallest", "shorter", "the shortest",
     "people"),
    ("score", "points", 10, 99, "better", "the best", "worse", "the worst", "people"),
    ("savings", "dollars", 20, 950, "richer", "the richest", "poorer", "the poorest", "people"),
    ("distance", "kilometres", 12, 900, "farther", "the farthest", "nearer", "the nearest",
     "places"),
    ("rain", "millimetres", 5, 300, "wetter", "the wettest", "drier", "the driest", "places"),
    ("heat", "degrees", 1, 44, "warmer", "the warmest", "colder", "the coldest", "places"),
    ("price", "dollars", 2, 99, "dearer", "the dearest", "cheaper", "the cheapest", "things"),
    ("weight", "grams", 15, 990, "heavier", "the heaviest", "lighter", "the lightest", "things"),
)  # fmt: skip
OBJECTS = (
    "the lamp,the chair,the bowl,the kettle,the blanket,the mirror,the clock,the basket,the radio,"
    "the vase,the pillow,the bucket,the globe,the flute,the kite,the helmet"
).split(",")


def _cap(text: str) -> str:
    return text[0].upper() + text[1:]


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def comparison(rng: random.Random) -> tuple[str, str]:
    """Three to five records with a number each: put in order, or asked for the first and last."""
    quality = rng.choice(QUALITIES)
    word, unit, low, high, more, most, less, least, kind = quality
    pool = {"people": NAMES, "places": PLACES, "things": OBJECTS}[kind]
    names = rng.sample(pool, rng.randint(3, 5))
    numbers = rng.sample(range(low, high + 1), len(names))
    rows = [f"{name} {number}" for name, number in zip(names, numbers, strict=True)]
    given = f"{_cap(word)} in {unit}: {_and(rows)}."
    up = rng.random() < 0.5
    order = sorted(zip(numbers, names, strict=True), reverse=not up)
    first, last, step = (least, most, more) if up else (most, least, less)
    form = rng.randrange(4)
    if form <= 1:
        way = f"from {least} to {most}" if up else f"from {most} to {least}"
        ask = rng.choice((f"Put them in order {way}.", f"Sort them {way}."))
        said = [f"{_cap(order[0][1])} is {first} with {order[0][0]} {unit}."]
        for (before, _), (number, name) in zip(order, order[1:], strict=False):
            gap = abs(number - before)
            said.append(rng.choice((
                f"Then comes {name} with {number} {unit}, {gap} {'more' if up else 'less'}.",
                f"Next is {name} with {number} {unit}, {gap} {'more' if up else 'less'}.",
            )))  # fmt: skip
        said.append(f"So {_cap(order[-1][1])} is {last}.")
    elif form == 2:
        (a, one), (b, two) = rng.sample(order, 2)
        ask = f"Compare {one} and {two}."
        said = [f"{_cap(one)} has {a} {unit} and {two} has {b} {unit}.",
                f"The difference is {max(a, b)} - {min(a, b)} = {abs(a - b)} {unit}.",
                f"So {one} is {more if a > b else less} than {two}."]  # fmt: skip
    else:
        limit = rng.randint(low + 1, high - 1)
        above = [(n, number) for number, n in order if number > limit]
        ask = f"Which of them have more than {limit} {unit}?"
        rest = [n for number, n in order if number <= limit]
        if above:
            told = _and([f"{n} with {number} {unit}" for n, number in above])
            said = [f"More than {limit} {unit}: {told}."]
        else:
            said = [f"None of them has more than {limit} {unit}."]
        said.append(f"The other {len(rest)} are {_and(rest)}." if len(rest) > 1 else
                    f"Only {rest[0]} is left." if rest else "These are all of them.")  # fmt: skip
    return f"{given} {ask}", " ".join(said)


HEROES = {
    "fox": ("forest", "clever"), "girl": ("village", "brave"), "boy": ("town", "curious"),
    "rabbit": ("meadow", "quick"), "sailor": ("harbour", "calm"), "bear": ("mountains", "strong"),
    "tailor": ("market", "patient"), "owl": ("old tower", "wise"), "robot": ("workshop", "kind"),
    "painter": ("garden", "quiet"), "farmer": ("valley", "honest"), "cat": ("narrow street", "sly"),
}  # fmt: skip
LOST = "key lamp map hat drum letter ring boat ball bell book kite coat coin flute watch".split()
FOUND = (
    "under a bridge,behind a wall,in a hollow tree,beside the river,on a roof,in an empty barrel,"
    "between two stones,at the bottom of a well,on a market stall,in the snow"
).split(",")
GIFTS = ("a cake,a song,a warm scarf,a basket of pears,a drawing,a cup of tea,a silver coin").split(
    ","
)
WEATHER = "sunny rainy windy cold foggy snowy warm stormy".split()


def story(rng: random.Random) -> tuple[str, str]:
    """A short story with hero, place, lost thing and helper of the question."""
    hero = rng.choice(list(HEROES))
    place, character = HEROES[hero]
    if rng.random() < 0.6:
        place = rng.choice([p for p, _ in HEROES.values()])
    name, friend = rng.sample(NAMES, 2)
    other = rng.choice([h for h in HEROES if h != hero])
    thing, where, gift, sky = (rng.choice(t) for t in (LOST, FOUND, GIFTS, WEATHER))
    prompt = rng.choice((
        f"Write a short story about a {hero} called {name} who loses a {thing}. The {other} "
        f"{friend} finds it {where}. It is a {sky} day in the {place}.",
        f"Tell me a story: {name} the {hero} lives in the {place} and loses a {thing} on a {sky} "
        f"day. {friend} the {other} helps and finds it {where}.",
    ))  # fmt: skip
    if rng.random() < 0.5:
        prompt += f" In the end {friend} gets {gift}."
    else:
        gift = ""
    parts = [
        f"Once there was a {character} {hero} called {name} who lived in the {place}.",
        rng.choice((f"One {sky} day {name} could not find the {thing}.",
                    f"On a {sky} day the {thing} was gone, and {name} was sad.")),
        f"{name} looked everywhere, but the {thing} was not there.",
        rng.choice((f"Then {friend} the {other} came by and said: \"I will help you.\"",
                    f"\"Let me help you,\" said {friend} the {other}.")),
        f"After a long search {friend} found the {thing} {where}.",
        (f"{name} thanked {friend} with {gift}." if gift else f"{name} thanked {friend}."),
        rng.choice(("From that day on they were friends.",
                    f"Since then {name} has never lost the {thing} again.")),
    ]  # fmt: skip
    if rng.random() < 0.3:
        del parts[2]
    return prompt, " ".join(parts)


EVENTS = {
    "birthday party": ("cake and games", "a present"), "concert": ("songs and a choir", "a ticket"),
    "garden party": ("grilled food", "a salad"), "film night": ("two old films", "some snacks"),
    "football match": ("a match of two hours", "warm clothes"), "dinner": ("three courses", "wine"),
    "book club": ("a talk about a novel", "the book"), "picnic": ("bread and fruit", "a blanket"),
    "meeting": ("a talk and questions", "your notes"), "walk": ("a tour by the lake", "good shoes"),
}  # fmt: skip
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


def letter(rng: random.Random) -> tuple[str, str]:
    """An invitation, or the refusal of one, with sender, guest, day, hour and place."""
    event, (what, bring) = rng.choice(list(EVENTS.items()))
    sender, guest = rng.sample(NAMES, 2)
    day, hour, place = rng.choice(DAYS), rng.randint(1, 11), rng.choice(PLACES)
    if rng.random() < 0.6:
        prompt = (f"Write an invitation from {sender} to {guest} for a {event} in {place} on "
                  f"{day} at {hour} o'clock.")  # fmt: skip
        text = (f"Dear {guest},\n\nI would like to invite you to a {event} in {place}. It starts "
                f"on {day} at {hour} o'clock, and there will be {what}. Please bring {bring}.\n\n"
                f"Best wishes,\n{sender}")  # fmt: skip
        return prompt, text
    other = rng.choice([d for d in DAYS if d != day])
    prompt = (f"{guest} was invited by {sender} to a {event} on {day} in {place} and cannot come. "
              f"Write the answer and offer {other}.")  # fmt: skip
    text = (f"Dear {sender},\n\nThank you for the invitation to the {event} in {place}. I am sorry "
            f"that I cannot come on {day}. Could we meet on {other} instead?\n\n"
            f"Best wishes,\n{guest}")  # fmt: skip
    return prompt, text


ACTS = (
    "swims,reads,cooks dinner,cleans the house,visits a friend,learns Spanish,plays chess,"
    "goes shopping,waters the plants,writes letters,walks the dog,repairs the bike,paints,"
    "bakes bread,watches a film,takes a nap"
).split(",")


def timetable(rng: random.Random) -> tuple[str, str]:
    """Things somebody does at hours that are not in order; the answer tells the day in order."""
    pronoun = rng.choice(("she", "he"))
    name, count = rng.choice(PEOPLE[pronoun]), rng.randint(3, 5)
    hours, acts = rng.sample(range(6, 23), count), rng.sample(ACTS, count)
    given = [f"at {h} {name if i == 0 else pronoun} {a}"
             for i, (h, a) in enumerate(zip(hours, acts, strict=True))]  # fmt: skip
    ask = rng.choice(("What does the day look like in order?", "Tell the day in the right order.",
                      f"Describe the day of {name} from morning to night."))  # fmt: skip
    day = sorted(zip(hours, acts, strict=True))
    said = [f"At {day[0][0]} {name} {day[0][1]}."]
    for (before, _), (hour, act) in zip(day, day[1:], strict=False):
        gap = hour - before
        later = "One hour" if gap == 1 else f"{gap} hours"
        said.append(f"{later} later, at {hour}, {pronoun} {act}.")
    said.append(f"The day ends when {pronoun} {day[-1][1]} at {day[-1][0]}.")
    return f"{_cap(_and(given))}. {ask}", " ".join(said)


def passage(rng: random.Random, telling: bool = False) -> tuple[str, str]:
    """One (question, answer); `telling` leaves out stories and letters, which repeat a pattern."""
    kinds = (comparison, timetable) if telling else (comparison, story, letter, timetable)
    make = rng.choices(kinds, weights=[5, 3] if telling else [5, 4, 2, 3])[0]
    question, answer = make(rng)
    return question.replace(" a owl", " an owl"), answer
