"""Small tables of facts for the prose corpus, written for this project.

One line a row, fields between semicolons; `TABLES` names the fields.
"""

# ruff: noqa: E501

COUNTRIES = """
France;Paris;Europe;French;the euro
Germany;Berlin;Europe;German;the euro
Italy;Rome;Europe;Italian;the euro
Spain;Madrid;Europe;Spanish;the euro
Portugal;Lisbon;Europe;Portuguese;the euro
Austria;Vienna;Europe;German;the euro
Greece;Athens;Europe;Greek;the euro
Ireland;Dublin;Europe;English and Irish;the euro
Finland;Helsinki;Europe;Finnish and Swedish;the euro
Sweden;Stockholm;Europe;Swedish;the krona
Norway;Oslo;Europe;Norwegian;the krone
Denmark;Copenhagen;Europe;Danish;the krone
Iceland;Reykjavik;Europe;Icelandic;the krona
Poland;Warsaw;Europe;Polish;the zloty
Hungary;Budapest;Europe;Hungarian;the forint
Romania;Bucharest;Europe;Romanian;the leu
Switzerland;Bern;Europe;German, French and Italian;the franc
Ukraine;Kyiv;Europe;Ukrainian;the hryvnia
Japan;Tokyo;Asia;Japanese;the yen
China;Beijing;Asia;Chinese;the yuan
India;New Delhi;Asia;Hindi and English;the rupee
Nepal;Kathmandu;Asia;Nepali;the rupee
Thailand;Bangkok;Asia;Thai;the baht
Vietnam;Hanoi;Asia;Vietnamese;the dong
Mongolia;Ulaanbaatar;Asia;Mongolian;the tugrik
Turkey;Ankara;Asia;Turkish;the lira
Iran;Tehran;Asia;Persian;the rial
Jordan;Amman;Asia;Arabic;the dinar
Egypt;Cairo;Africa;Arabic;the pound
Morocco;Rabat;Africa;Arabic;the dirham
Kenya;Nairobi;Africa;Swahili and English;the shilling
Ghana;Accra;Africa;English;the cedi
Nigeria;Abuja;Africa;English;the naira
Senegal;Dakar;Africa;French;the franc
Ethiopia;Addis Ababa;Africa;Amharic;the birr
Canada;Ottawa;North America;English and French;the dollar
Mexico;Mexico City;North America;Spanish;the peso
Cuba;Havana;North America;Spanish;the peso
Brazil;Brasilia;South America;Portuguese;the real
Argentina;Buenos Aires;South America;Spanish;the peso
Chile;Santiago;South America;Spanish;the peso
Peru;Lima;South America;Spanish;the sol
Colombia;Bogota;South America;Spanish;the peso
Australia;Canberra;Oceania;English;the dollar
New Zealand;Wellington;Oceania;English and Maori;the dollar
"""

ANIMALS = """
cow;mammal;on farms;grass;calf;moos
horse;mammal;on farms and plains;grass and oats;foal;neighs
sheep;mammal;on meadows;grass;lamb;bleats
pig;mammal;on farms;roots and grain;piglet;grunts
dog;mammal;with people;meat and grain;puppy;barks
cat;mammal;with people;mice and fish;kitten;meows
lion;mammal;in the savanna;antelopes and zebras;cub;roars
wolf;mammal;in forests;deer and rabbits;pup;howls
bear;mammal;in forests;berries and fish;cub;growls
elephant;mammal;in the savanna;leaves and bark;calf;trumpets
mouse;mammal;in fields and houses;seeds;pup;squeaks
whale;mammal;in the sea;small fish and krill;calf;sings
bat;mammal;in caves;insects;pup;squeaks
duck;bird;on ponds;plants and snails;duckling;quacks
hen;bird;on farms;grain and worms;chick;clucks
goose;bird;on lakes;grass;gosling;honks
owl;bird;in old trees;mice;owlet;hoots
eagle;bird;in the mountains;rabbits and fish;eaglet;screams
penguin;bird;on cold coasts;fish;chick;brays
frog;amphibian;near ponds;insects;tadpole;croaks
snake;reptile;in grass and rocks;mice and eggs;snakelet;hisses
crocodile;reptile;in warm rivers;fish and birds;hatchling;growls
salmon;fish;in rivers and the sea;small fish;fry;makes no sound
shark;fish;in the sea;fish and seals;pup;makes no sound
bee;insect;in hives;nectar and pollen;larva;buzzes
butterfly;insect;in gardens;nectar;caterpillar;makes no sound
cricket;insect;in meadows;plants;nymph;chirps
"""

ELEMENTS = """
hydrogen;H;1;gas;fuel
helium;He;2;gas;balloons
lithium;Li;3;metal;batteries
carbon;C;6;solid;pencils and steel
nitrogen;N;7;gas;fertiliser
oxygen;O;8;gas;breathing and welding
neon;Ne;10;gas;bright signs
sodium;Na;11;metal;table salt
magnesium;Mg;12;metal;light alloys
aluminium;Al;13;metal;cans and aircraft
silicon;Si;14;solid;computer chips
sulfur;S;16;solid;matches and rubber
chlorine;Cl;17;gas;clean water
calcium;Ca;20;metal;bones and cement
titanium;Ti;22;metal;strong light parts
iron;Fe;26;metal;tools and bridges
nickel;Ni;28;metal;coins
copper;Cu;29;metal;wires and pipes
zinc;Zn;30;metal;coating steel
silver;Ag;47;metal;jewels and mirrors
tin;Sn;50;metal;solder
gold;Au;79;metal;jewels and contacts
mercury;Hg;80;liquid metal;old thermometers
lead;Pb;82;metal;batteries and weights
"""

TOOLS = """
hammer;drive nails into wood;carpenter;a heavy head and a handle
saw;cut wood;carpenter;a blade with teeth
plane;make wood smooth;carpenter;a flat sole and a sharp blade
screwdriver;turn screws;mechanic;a shaft with a shaped tip
wrench;turn nuts and bolts;mechanic;two jaws and a handle
needle;sew cloth;tailor;a thin point and an eye
scissors;cut cloth and paper;tailor;two blades that turn on a pin
oven;bake bread;baker;a hot closed space
whisk;beat eggs and cream;cook;several loops of wire
knife;cut food;cook;a sharp blade and a handle
spade;dig holes in the soil;gardener;a flat blade and a long handle
rake;gather leaves;gardener;a row of teeth and a long handle
hose;water plants;gardener;a long soft pipe
plough;turn over the soil;farmer;a strong curved blade
tractor;pull heavy machines;farmer;an engine and large wheels
brush;spread paint;painter;soft hairs on a handle
ladder;reach high places;painter;two rails with steps between them
trowel;spread mortar;builder;a flat blade and a short handle
level;check whether a surface is flat;builder;a tube with a bubble of air
net;catch fish;fisher;many knots of thin cord
stethoscope;listen to the heart;doctor;a small disc and two ear pieces
thermometer;measure temperature;nurse;a scale and a sensor
microscope;see very small things;scientist;several lenses in a tube
telescope;see far away stars;astronomer;a long tube with lenses or mirrors
compass;find north;sailor;a small magnet that can turn
anchor;hold a ship in its place;sailor;a heavy hook on a chain
camera;take pictures;photographer;a lens and a sensor
piano;play music;musician;black and white keys
violin;play music;musician;four strings and a bow
calculator;work with numbers;accountant;keys and a small display
"""

PLANETS = """
Mercury;first;88 days;small and rocky;no moons
Venus;second;225 days;hot and cloudy;no moons
Earth;third;365 days;rocky, with water and air;one moon
Mars;fourth;687 days;red and dusty;two small moons
Jupiter;fifth;12 years;very large and made of gas;many moons
Saturn;sixth;29 years;made of gas, with bright rings;many moons
Uranus;seventh;84 years;cold and pale blue;many moons
Neptune;eighth;165 years;cold and dark blue;several moons
"""

UNITS = """
kilometre;length;1000 metres;roads
metre;length;100 centimetres;rooms
centimetre;length;10 millimetres;small things
kilogram;weight;1000 grams;food
tonne;weight;1000 kilograms;trucks
litre;volume;1000 millilitres;drinks
hour;time;60 minutes;work
minute;time;60 seconds;cooking
day;time;24 hours;travel
week;time;7 days;plans
year;time;12 months;ages
dozen;number;12 pieces;eggs
"""

MONTHS = """
January;first;31 days;winter;December;February
February;second;28 or 29 days;winter;January;March
March;third;31 days;spring;February;April
April;fourth;30 days;spring;March;May
May;fifth;31 days;spring;April;June
June;sixth;30 days;summer;May;July
July;seventh;31 days;summer;June;August
August;eighth;31 days;summer;July;September
September;ninth;30 days;autumn;August;October
October;tenth;31 days;autumn;September;November
November;eleventh;30 days;autumn;October;December
December;twelfth;31 days;winter;November;January
"""

MATERIALS = """
wood;trees;tables and houses;it is strong and easy to cut
glass;sand;windows and bottles;light passes through it
paper;wood fibres;books and letters;it is thin and easy to write on
steel;iron and carbon;bridges and tools;it is hard and strong
brick;clay;walls;it is hard and does not burn
wool;sheep;coats and socks;it keeps the body warm
cotton;a plant;shirts and towels;it is soft and takes up water
silk;silkworms;scarves and dresses;it is light and smooth
leather;the skin of animals;shoes and belts;it is tough and bends well
rubber;the sap of a tree;tyres and boots;it stretches and keeps water out
plastic;oil;toys and boxes;it is light and easy to form
concrete;cement, sand and stones;floors and dams;it gets as hard as stone
wax;bees;candles;it melts and burns slowly
bronze;copper and tin;bells and statues;it does not rust
"""

TABLES = {
    "country": ("name capital continent language money", COUNTRIES),
    "animal": ("name kind home food young sound", ANIMALS),
    "element": ("name symbol number state use", ELEMENTS),
    "tool": ("name purpose user parts", TOOLS),
    "planet": ("name place year look moons", PLANETS),
    "unit": ("name measures equals use", UNITS),
    "month": ("name place length season before after", MONTHS),
    "material": ("name source use reason", MATERIALS),
}

# subject | steps, separated by semicolons
PROCESSES = """
make a cup of tea|boil fresh water;put a tea bag in a cup;pour the water over it;wait for three minutes;take the bag out
boil an egg|fill a pot with water;bring the water to the boil;put the egg in;wait for seven minutes;cool the egg in cold water
bake bread|mix flour, water, salt and yeast;knead the dough;let it rise for an hour;form a loaf;bake it until it is brown
cook rice|wash the rice;put it in a pot with water;bring it to the boil;turn down the heat;wait until the water is gone
make a salad|wash the leaves;cut the vegetables;put everything in a bowl;add oil and vinegar;mix it well
make soup|cut the vegetables;fry them for a few minutes;add water and salt;cook them until they are soft;taste the soup
plant a tree|dig a wide hole;put the tree in the middle;fill the hole with soil;press the soil down;water the tree
grow tomatoes|put the seeds in warm soil;keep the soil moist;move the young plants into the sun;tie them to a stick;pick the fruit when it is red
wash clothes|sort the clothes by colour;put them in the machine;add some soap;choose the right program;hang them up to dry
clean a window|mix warm water with some soap;wash the glass with a cloth;wipe off the water;dry the edges;look at it from both sides
paint a wall|cover the floor;clean the wall;stir the paint;paint the edges with a brush;fill the rest with a roller
change a tyre|stop on flat ground;loosen the nuts;lift the car;put on the spare wheel;tighten the nuts
repair a bicycle tyre|take off the wheel;pull out the tube;find the hole;stick a patch on it;put everything back
write a letter|write the date at the top;greet the reader;say why you write;close with a greeting;sign your name
learn a language|learn a few words every day;listen to people who speak it;read short texts;speak as often as you can;repeat what you forget
prepare for a test|find out what will be asked;make a plan;read your notes;solve some old problems;sleep well the night before
borrow a book|go to the library;look for the title;take the book to the desk;show your card;bring it back in time
send a parcel|choose a strong box;wrap the things in paper;close the box with tape;write the address on it;take it to the post office
take a photo|clean the lens;choose what to show;hold the camera still;look at the light;press the button
make a fire|gather dry wood;put small sticks in the middle;lay larger ones around them;light the small sticks;add wood slowly
pitch a tent|find flat ground;lay out the tent;put the poles together;raise the tent;fix it with pegs
read a map|find north;look for your place;find the place where you want to go;choose a way;check the scale
save money|write down what you spend;set a goal;buy only what you need;put a part aside each month;look at your progress
brush your teeth|put paste on the brush;brush the outer sides;brush the inner sides;spend two minutes on it;rinse your mouth
wash your hands|wet your hands;take some soap;rub them for twenty seconds;rinse them with water;dry them with a towel
make coffee|grind the beans;put a filter in the holder;add the coffee;pour hot water over it;wait until it has run through
make jam|wash the fruit;cut it into pieces;cook it with sugar;fill it into clean jars;close them at once
knit a scarf|choose soft wool;cast on the first row;knit row after row;cast off the last row;hide the loose ends
build a bird house|saw the boards;make a round hole in the front;nail the boards together;paint the outside;hang it in a tree
keep a fish|fill a tank with clean water;add plants and stones;let the water rest for some days;put the fish in;feed it a little every day
"""

# a question's subject | why it is so
REASONS = """
the sky is blue|air scatters blue light more than red light;the scattered light reaches us from all sides
ice floats on water|water grows larger when it freezes;so a piece of ice is lighter than the same volume of water
leaves are green|they contain chlorophyll;this substance takes in red and blue light and sends back green light
it rains|warm air carries water up;there it cools and forms drops, and the drops fall when they are heavy enough
we have seasons|the axis of the Earth is tilted;so each half gets more sun in one part of the year than in the other
we have day and night|the Earth turns around its axis once a day;the side that faces the sun has day
iron rusts|iron reacts with oxygen and water;the new substance is brown and breaks easily
metal feels cold|metal carries heat away quickly;so the skin loses warmth when it touches it
bread rises|yeast turns sugar into gas;the gas makes small bubbles in the dough
the sea is salty|rivers wash salt out of rocks;the water leaves the sea as vapour, but the salt stays
birds can fly|they have light bones and strong muscles;their wings push the air down
fish can breathe in water|they have gills;the gills take oxygen out of the water
we need sleep|the body repairs itself at night;the brain sorts what it has learned
we sweat|water on the skin takes heat away when it dries;this keeps the body cool
plants need light|they use light to make sugar from water and air;the sugar is their food
the moon shines|the moon reflects the light of the sun;it has no light of its own
thunder follows lightning|lightning heats the air, which expands at once;light travels faster than sound
a ship floats|its body pushes water aside;the water pushes back as strongly as the ship is heavy
bees visit flowers|they collect nectar and pollen;in this way they also carry pollen to other flowers
cats see well at night|their eyes let in much light;a layer behind the eye reflects it
salt melts ice|salt water freezes at a lower temperature than water;so the ice turns into water
a balloon rises|hot air and helium are lighter than the air around them;so they are pushed up
wood burns|wood contains carbon;when it is hot, the carbon reacts with oxygen and gives off heat
onions make us cry|a cut onion sets free a gas;in the eye the gas forms a weak acid
"""


def rows(table: str) -> list[dict[str, str]]:
    """The rows of one of the `TABLES`, as dictionaries."""
    names, text = TABLES[table]
    return [
        dict(zip(names.split(), line.split(";"), strict=True)) for line in text.split("\n") if line
    ]


def pairs(text: str) -> list[tuple[str, list[str]]]:
    """(subject, parts) of `PROCESSES` or `REASONS`."""
    lines = [line.split("|") for line in text.split("\n") if line]
    return [(subject, parts.split(";")) for subject, parts in lines]
