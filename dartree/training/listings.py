"""Prose whose content stands in the question: records put in order or compared, stories, letters.

What is asked for is drawn anew for every sample, so nothing can be learnt by heart: the answer
copies names and numbers, sorts them and draws conclusions. The words are in `text/listings.json`.
"""

from __future__ import annotations

import random

from dartree.training.templates import load, sentence

LISTS, STORIES = load("listings"), load("stories")
NAMES = [*STORIES["people"]["she"], *STORIES["people"]["he"], *STORIES["friends"]]
POOLS = {"people": NAMES, "places": LISTS["places"], "things": LISTS["objects"]}


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def comparison(rng: random.Random) -> tuple[str, str]:
    """Three to five records with a number each: put in order, or asked for the first and last."""
    word, unit, low, high, more, most, less, least, kind = rng.choice(LISTS["qualities"])
    names = rng.sample(POOLS[kind], rng.randint(3, 5))
    numbers = rng.sample(range(low, high + 1), len(names))
    records = [f"{name} {number}" for name, number in zip(names, numbers, strict=True)]
    up = rng.random() < 0.5
    order = sorted(zip(numbers, names, strict=True), reverse=not up)
    form = rng.randrange(4)
    if form <= 1:
        first, last = (least, most) if up else (most, least)
        ask = rng.choice(("Put them in order", "Sort them")) + f" from {first} to {last}."
        said = _in_order(rng, order, unit, first, last, "more" if up else "less")
    elif form == 2:
        (a, one), (b, two) = rng.sample(order, 2)
        ask = f"Compare {one} and {two}."
        said = [f"{sentence(one)} has {a} {unit} and {two} has {b} {unit}.",
                f"The difference is {max(a, b)} - {min(a, b)} = {abs(a - b)} {unit}.",
                f"So {one} is {more if a > b else less} than {two}."]  # fmt: skip
    else:
        limit = rng.randint(low + 1, high - 1)
        ask = f"Which of them have more than {limit} {unit}?"
        said = _above(order, limit, unit)
    return f"{sentence(word)} in {unit}: {_and(records)}. {ask}", " ".join(said)


def _in_order(rng, order: list[tuple], unit: str, first: str, last: str, step: str) -> list[str]:
    """(number, name) pairs told one after the other."""
    said = [f"{sentence(order[0][1])} is {first} with {order[0][0]} {unit}."]
    for (before, _), (number, name) in zip(order, order[1:], strict=False):
        said.append(rng.choice(("Then comes", "Next is"))
                    + f" {name} with {number} {unit}, {abs(number - before)} {step}.")  # fmt: skip
    return [*said, f"So {sentence(order[-1][1])} is {last}."]


def _above(order: list[tuple], limit: int, unit: str) -> list[str]:
    """(number, name) pairs above a limit, and the rest."""
    above = [f"{name} with {number} {unit}" for number, name in order if number > limit]
    rest = [name for number, name in order if number <= limit]
    said = f"More than {limit} {unit}: {_and(above)}." if above else (
        f"None of them has more than {limit} {unit}.")  # fmt: skip
    if len(rest) > 1:
        return [said, f"The other {len(rest)} are {_and(rest)}."]
    return [said, f"Only {rest[0]} is left." if rest else "These are all of them."]


def story(rng: random.Random) -> tuple[str, str]:
    """A short story with hero, place, lost thing and helper of the question."""
    heroes = LISTS["heroes"]
    hero = rng.choice(list(heroes))
    place, character = heroes[hero]
    if rng.random() < 0.6:
        place = rng.choice([p for p, _ in heroes.values()])
    name, friend = rng.sample(NAMES, 2)
    other = rng.choice([h for h in heroes if h != hero])
    thing, where, gift, sky = (
        rng.choice(LISTS[kind]) for kind in ("lost", "found", "gifts", "weather")
    )
    prompt = rng.choice((
        f"Write a short story about a {hero} called {name} who loses a {thing}. The {other} "
        f"{friend} finds it {where}. It is a {sky} day in the {place}.",
        f"Tell me a story: {name} the {hero} lives in the {place} and loses a {thing} on a {sky} "
        f"day. {friend} the {other} helps and finds it {where}.",
    ))  # fmt: skip
    thanks = f"{name} thanked {friend}"
    if rng.random() < 0.5:
        prompt += f" In the end {friend} gets {gift}."
        thanks += f" with {gift}"
    parts = [
        f"Once there was a {character} {hero} called {name} who lived in the {place}.",
        rng.choice((f"One {sky} day {name} could not find the {thing}.",
                    f"On a {sky} day the {thing} was gone, and {name} was sad.")),
        f"{name} looked everywhere, but the {thing} was not there.",
        rng.choice((f"Then {friend} the {other} came by and said: \"I will help you.\"",
                    f"\"Let me help you,\" said {friend} the {other}.")),
        f"After a long search {friend} found the {thing} {where}.",
        f"{thanks}.",
        rng.choice(("From that day on they were friends.",
                    f"Since then {name} has never lost the {thing} again.")),
    ]  # fmt: skip
    if rng.random() < 0.3:
        del parts[2]
    return prompt, " ".join(parts)


def letter(rng: random.Random) -> tuple[str, str]:
    """An invitation, or the refusal of one, with sender, guest, day, hour and place."""
    event, (what, bring) = rng.choice(list(LISTS["events"].items()))
    sender, guest = rng.sample(NAMES, 2)
    days = LISTS["days"]
    day, hour, place = rng.choice(days), rng.randint(1, 11), rng.choice(LISTS["places"])
    if rng.random() < 0.6:
        prompt = (f"Write an invitation from {sender} to {guest} for a {event} in {place} on "
                  f"{day} at {hour} o'clock.")  # fmt: skip
        text = (f"I would like to invite you to a {event} in {place}. It starts on {day} at {hour} "
                f"o'clock, and there will be {what}. Please bring {bring}.")  # fmt: skip
        return prompt, f"Dear {guest},\n\n{text}\n\nBest wishes,\n{sender}"
    other = rng.choice([d for d in days if d != day])
    prompt = (f"{guest} was invited by {sender} to a {event} on {day} in {place} and cannot come. "
              f"Write the answer and offer {other}.")  # fmt: skip
    text = (f"Thank you for the invitation to the {event} in {place}. I am sorry that I cannot "
            f"come on {day}. Could we meet on {other} instead?")  # fmt: skip
    return prompt, f"Dear {sender},\n\n{text}\n\nBest wishes,\n{guest}"


def timetable(rng: random.Random) -> tuple[str, str]:
    """Things somebody does at hours that are not in order; the answer tells the day in order."""
    pronoun = rng.choice(("she", "he"))
    name, count = rng.choice(STORIES["people"][pronoun]), rng.randint(3, 5)
    hours, acts = rng.sample(range(6, 23), count), rng.sample(LISTS["acts"], count)
    given = [f"at {hour} {pronoun if i else name} {act}"
             for i, (hour, act) in enumerate(zip(hours, acts, strict=True))]  # fmt: skip
    ask = rng.choice(("What does the day look like in order?", "Tell the day in the right order.",
                      f"Describe the day of {name} from morning to night."))  # fmt: skip
    day = sorted(zip(hours, acts, strict=True))
    said = [f"At {day[0][0]} {name} {day[0][1]}."]
    for (before, _), (hour, act) in zip(day, day[1:], strict=False):
        later = "One hour" if hour == before + 1 else f"{hour - before} hours"
        said.append(f"{later} later, at {hour}, {pronoun} {act}.")
    said.append(f"The day ends when {pronoun} {day[-1][1]} at {day[-1][0]}.")
    return f"{sentence(_and(given))}. {ask}", " ".join(said)


def passage(rng: random.Random, telling: bool = False) -> tuple[str, str]:
    """One (question, answer); `telling` leaves out stories and letters, which repeat a pattern."""
    kinds = (comparison, timetable) if telling else (comparison, story, letter, timetable)
    make = rng.choices(kinds, weights=[5, 3] if telling else [5, 4, 2, 3])[0]
    question, answer = make(rng)
    return question.replace(" a owl", " an owl"), answer
