"""How a word problem begins: the words, the problem under construction, and the openings.

An opening tells how somebody comes to a number of things, of dollars, of minutes; what happens to
that number afterwards is in `arithmetic`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

PEOPLE = {
    "she": "Mia Anna Lena Sara Ella Nora Ivy Ruth Clara Zoe Maya Julia Emma Alice Rosa Amira Hana "
    "Leila Priya Olga Yuki Ines Vera Tessa".split(),
    "he": "Tom Ben Sam Noah Luis Omar Leo Max Finn Hugo Ivan Paul Adam Eric Jonas Karl Amir Kenji "
    "Ravi Mateo Oscar Felix Simon Victor".split(),
}
FRIENDS = "Kim Alex Robin Jo Chris Sasha Toni Pat Lee Kit Dana Jamie".split()
THINGS = (
    "pens apples marbles books stickers cards shells coins stamps beads eggs cookies oranges "
    "pencils buttons toys flowers balloons candles cups plates stones tickets photos muffins "
    "lemons peaches ribbons badges bricks"
).split()


@dataclass
class Problem:
    """A problem under construction: the question, the worked steps, the value so far."""

    rng: random.Random
    name: str = ""
    pronoun: str = "she"
    unit: str = "pens"
    value: int = 0
    question: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    goal: str = ""

    def pick(self, *options: str) -> str:
        return self.rng.choice(options)

    def number(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def tell(self, *options: str) -> None:
        self.question.append(self.rng.choice(options))

    def work(self, expression: str, *leads: str, unit: str | None = None) -> int:
        """Writes one step and returns its value; `expression` holds numbers and + - * / only."""
        left, operator, right = expression.split()
        a, b = int(left), int(right)
        value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[operator]
        lead = self.rng.choice(leads)
        unit = self.unit if unit is None else unit
        self.steps.append(f"{lead} {expression} = {value} {unit}.".replace(" .", "."))
        self.value = value
        return value

    @property
    def He(self) -> str:
        return self.pronoun.capitalize()

    @property
    def his(self) -> str:
        return "her" if self.pronoun == "she" else "his"


# --- openings: how the number comes about ---------------------------------------------------------


def _boxes(p: Problem) -> None:
    box = p.pick("boxes", "bags", "packs", "baskets", "crates", "jars")
    n, each = p.number(2, 9), p.number(3, 20)
    verb = p.pick("buys", "gets", "finds", "orders")
    p.tell(
        f"{p.name} {verb} {n} {box} with {each} {p.unit} each.",
        f"{p.name} {verb} {n} {box}, and there are {each} {p.unit} in each of them.",
    )
    p.work(
        f"{n} * {each}",
        f"{p.name} {verb} {n} {box} with {each} {p.unit} each, so {p.pronoun} has",
        f"{n} {box} of {each} {p.unit} make",
        f"In the {n} {box} there are",
    )


def _collect(p: Problem) -> None:
    a, b = p.number(5, 60), p.number(5, 40)
    first, second = p.pick("Monday Tuesday", "Saturday Sunday", "Thursday Friday").split()
    verb = p.pick("collects", "finds", "makes", "receives")
    p.tell(
        f"{p.name} {verb} {a} {p.unit} on {first} and {b} {p.unit} on {second}.",
        f"On {first} {p.name} {verb} {a} {p.unit}, and on {second} {p.pronoun} {verb} {b} more.",
    )
    p.work(
        f"{a} + {b}",
        f"On both days together {p.name} {verb}",
        f"{p.name} {verb} {a} on {first} and {b} on {second}, so {p.pronoun} has",
    )


def _daily(p: Problem) -> None:
    days, each = p.number(3, 9), p.number(3, 15)
    verb = p.pick("collects", "makes", "paints", "saves")
    p.tell(
        f"{p.name} {verb} {each} {p.unit} every day for {days} days.",
        f"For {days} days {p.name} {verb} {each} {p.unit} a day.",
    )
    p.work(
        f"{days} * {each}",
        f"In {days} days {p.name} {verb}",
        f"{each} {p.unit} a day for {days} days make",
    )


def _rows(p: Problem) -> None:
    rows, each = p.number(3, 9), p.number(4, 12)
    place = p.pick("table", "shelf", "floor", "wall")
    p.tell(
        f"{p.name} puts {p.his} {p.unit} on the {place} in {rows} rows of {each}.",
        f"On the {place} {p.name} lays out {rows} rows with {each} {p.unit} in each row.",
    )
    p.work(
        f"{rows} * {each}",
        f"{rows} rows of {each} {p.unit} are",
        f"On the {place} there are {rows} rows, so {p.name} has",
    )


def _two_kinds(p: Problem) -> None:
    a, b = p.number(4, 50), p.number(4, 50)
    one, two = p.pick("red blue", "green yellow", "old new", "small large", "black white").split()
    p.tell(
        f"{p.name} has {a} {one} {p.unit} and {b} {two} {p.unit}.",
        f"There are {a} {one} and {b} {two} {p.unit} in {p.name}'s room.",
    )
    p.work(
        f"{a} + {b}",
        f"With the {one} and the {two} {p.unit}, {p.name} has",
        f"{a} {one} and {b} {two} {p.unit} are",
    )


def _times_friend(p: Problem) -> None:
    friend, times, a = p.pick(*FRIENDS), p.number(2, 6), p.number(4, 20)
    p.tell(
        f"{friend} has {a} {p.unit}. {p.name} has {times} times as many {p.unit} as {friend}.",
        f"{p.name} has {times} times as many {p.unit} as {friend}, who has {a}.",
    )
    p.work(
        f"{times} * {a}",
        f"{friend} has {a} {p.unit}, so {p.name} has",
        f"{times} times {friend}'s {a} {p.unit} are",
    )


def _more_than_friend(p: Problem) -> None:
    friend, a, b = p.pick(*FRIENDS), p.number(8, 60), p.number(3, 25)
    if p.rng.random() < 0.5:
        p.tell(f"{friend} has {a} {p.unit}. {p.name} has {b} more than {friend}.")
        p.work(f"{a} + {b}", f"{p.name} has {b} more than {friend}'s {a}, so {p.pronoun} has")
    else:
        a += b
        p.tell(f"{friend} has {a} {p.unit}. {p.name} has {b} fewer than {friend}.")
        p.work(f"{a} - {b}", f"{p.name} has {b} fewer than {friend}'s {a}, so {p.pronoun} has")


def _half(p: Problem) -> None:
    part, count = p.pick("half 2", "a third 3", "a quarter 4").rsplit(" ", 1)
    total = int(count) * p.number(4, 25)
    p.tell(
        f"A shop has {total} {p.unit}. {p.name} buys {part} of them.",
        f"There are {total} {p.unit} in a box, and {p.name} takes {part} of them.",
    )
    p.work(
        f"{total} / {count}",
        f"{part.capitalize()} of {total} is",
        f"{p.name} gets {part} of the {total} {p.unit}, which is",
    )


def _packs_and_loose(p: Problem) -> None:
    n, each, loose = p.number(2, 8), p.number(4, 12), p.number(2, 20)
    p.tell(
        f"{p.name} has {n} packs of {each} {p.unit} and {loose} loose {p.unit}.",
        f"In {p.name}'s bag there are {n} packs of {each} {p.unit} and {loose} single ones.",
    )
    inside = p.work(f"{n} * {each}", "In the packs there are", f"{n} packs of {each} {p.unit} are")
    p.work(f"{inside} + {loose}", f"With the {loose} others that makes", f"Altogether {p.name} has")


def _two_shops(p: Problem) -> None:
    n, each, m, every = p.number(2, 6), p.number(3, 10), p.number(2, 6), p.number(3, 10)
    p.tell(
        f"{p.name} buys {n} bags of {each} {p.unit} in one shop and {m} bags of {every} "
        f"{p.unit} in another shop."
    )
    a = p.work(f"{n} * {each}", f"In the first shop {p.name} buys", "The first shop gives")
    b = p.work(f"{m} * {every}", f"In the second shop {p.pronoun} buys", "The second shop gives")
    p.work(f"{a} + {b}", f"Together {p.name} has", "Both shops together give")


ITEM_OPENINGS = (
    _boxes, _collect, _daily, _rows, _two_kinds, _times_friend, _more_than_friend, _half,
    _packs_and_loose, _two_shops,
)  # fmt: skip


def _wage(p: Problem) -> None:
    hours, rate = p.number(3, 9), p.number(6, 20)
    job = p.pick("in a garden", "in a shop", "at a farm", "in a library", "at a bakery")
    p.tell(
        f"{p.name} works {job} for {hours} hours and earns {rate} dollars an hour.",
        f"{p.name} earns {rate} dollars an hour {job} and works {hours} hours.",
    )
    p.work(
        f"{hours} * {rate}",
        f"For {hours} hours {p.name} earns",
        f"{p.name} works {hours} hours at {rate} dollars an hour, so {p.pronoun} earns",
    )


def _sell(p: Problem) -> None:
    thing, n, price = p.pick(*THINGS), p.number(3, 15), p.number(2, 9)
    p.tell(
        f"{p.name} sells {n} {thing} for {price} dollars each.",
        f"At the market {p.name} sells {n} {thing}, each for {price} dollars.",
    )
    p.work(
        f"{n} * {price}",
        f"For the {n} {thing} {p.name} gets",
        f"{n} {thing} at {price} dollars each bring",
    )


def _savings(p: Problem) -> None:
    a, weeks, each = p.number(10, 60), p.number(3, 9), p.number(2, 12)
    p.tell(
        f"{p.name} has {a} dollars and saves {each} dollars a week for {weeks} weeks.",
        f"{p.name} starts with {a} dollars. For {weeks} weeks {p.pronoun} saves {each} dollars "
        "a week.",
    )
    saved = p.work(f"{weeks} * {each}", f"In {weeks} weeks {p.name} saves", "The savings are")
    p.work(f"{a} + {saved}", f"With the {a} dollars {p.pronoun} has", f"So {p.name} has")


def _gift(p: Problem) -> None:
    a, b = p.number(10, 80), p.number(5, 50)
    giver = p.pick("aunt", "uncle", "mother", "father", "grandmother")
    p.tell(
        f"{p.name} has {a} dollars and gets {b} dollars from {p.his} {giver}.",
        f"{p.name}'s {giver} gives {p.name} {b} dollars. Before that {p.pronoun} had {a} dollars.",
    )
    p.work(f"{a} + {b}", f"With the money from {p.his} {giver} {p.name} has", f"{p.name} now has")


def _share_bill(p: Problem) -> None:
    people, each = p.number(2, 8), p.number(4, 20)
    p.tell(f"{people} friends share a prize of {people * each} dollars equally. One is {p.name}.")
    p.work(
        f"{people * each} / {people}",
        f"{p.name}'s part of the prize is",
        f"Each of the {people} friends gets",
    )


MONEY_OPENINGS = (_wage, _sell, _savings, _gift, _share_bill)


def _drive(p: Problem) -> None:
    hours, speed = p.number(2, 6), p.number(4, 30)
    way = p.pick("cycles", "cycles along a river", "rides a horse", "sails")
    p.tell(
        f"{p.name} {way} for {hours} hours at {speed} kilometres an hour.",
        f"At {speed} kilometres an hour {p.name} {way} for {hours} hours.",
    )
    p.work(f"{hours} * {speed}", f"In {hours} hours {p.name} covers", "The first part is")


def _laps(p: Problem) -> None:
    laps, each = p.number(3, 9), p.number(2, 12)
    p.tell(f"{p.name} does {laps} laps of a course that is {each} kilometres long.")
    p.work(
        f"{laps} * {each}", f"{laps} laps of {each} kilometres are", f"In the laps {p.name} covers"
    )


def _stages(p: Problem) -> None:
    a, b = p.number(5, 60), p.number(5, 60)
    p.tell(
        f"{p.name} travels {a} kilometres by bus and {b} kilometres by train.",
        f"By bus {p.name} travels {a} kilometres, and by train {b} kilometres.",
    )
    p.work(f"{a} + {b}", "Bus and train together are", f"By bus and train {p.name} travels")


DISTANCE_OPENINGS = (_drive, _laps, _stages)


def _reading(p: Problem) -> None:
    days, each = p.number(3, 9), p.number(5, 25)
    p.tell(
        f"{p.name} reads {each} pages a day for {days} days.",
        f"Every day {p.name} reads {each} pages, and {p.pronoun} does so for {days} days.",
    )
    p.work(f"{days} * {each}", f"In {days} days {p.name} reads", f"{each} pages a day make")


def _chapters(p: Problem) -> None:
    chapters, each = p.number(3, 9), p.number(6, 20)
    p.tell(f"{p.name} reads {chapters} chapters of {each} pages each.")
    p.work(f"{chapters} * {each}", f"{chapters} chapters have", f"In the chapters {p.name} reads")


def _two_books(p: Problem) -> None:
    a, b = p.number(20, 150), p.number(20, 150)
    p.tell(f"{p.name} reads a book of {a} pages and a book of {b} pages.")
    p.work(f"{a} + {b}", "The two books have", f"In both books {p.name} reads")


PAGE_OPENINGS = (_reading, _chapters, _two_books)


def _practice(p: Problem) -> None:
    days, each = p.number(3, 7), p.number(5, 30)
    what = p.pick("plays the piano", "draws", "swims", "runs", "dances")
    p.tell(
        f"{p.name} {what} for {each} minutes a day on {days} days.",
        f"On {days} days {p.name} {what} for {each} minutes each.",
    )
    p.work(f"{days} * {each}", f"On {days} days that takes", f"{days} times {each} minutes are")


def _tasks(p: Problem) -> None:
    a, b = p.number(5, 50), p.number(5, 50)
    one, two = p.pick("cooking cleaning", "reading writing", "running swimming").split()
    p.tell(f"{p.name} spends {a} minutes on {one} and {b} minutes on {two}.")
    p.work(f"{a} + {b}", f"{one.capitalize()} and {two} take", f"On both {p.name} spends")


def _repairs(p: Problem) -> None:
    n, each = p.number(2, 9), p.number(4, 20)
    thing = p.pick("bikes", "chairs", "clocks", "lamps", "shoes")
    p.tell(f"{p.name} repairs {n} {thing}, and each takes {each} minutes.")
    p.work(f"{n} * {each}", f"The {n} {thing} take", f"For {n} {thing} {p.name} needs")


MINUTE_OPENINGS = (_practice, _tasks, _repairs)

Part = Callable[[Problem], None]
OPENINGS: dict[str, tuple[Part, ...]] = {
    "things": ITEM_OPENINGS, "dollars": MONEY_OPENINGS, "kilometres": DISTANCE_OPENINGS,
    "pages": PAGE_OPENINGS, "minutes": MINUTE_OPENINGS,
}  # fmt: skip
