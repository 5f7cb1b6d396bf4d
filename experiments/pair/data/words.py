"""Word lists for synthetic records. Short on purpose: what a record set repeats is what a drafter can learn."""

_FIRST_NAMES = (
    "Ada Alan Alice Amara Andre Anna Arjun Astrid Aylin Ben Bianca Boris Carla Carlos Chen Chloe Clara Daniel Daria "
    "David Diego Elena Elias Emma Erik Eva Fatima Felix Fiona Frank George Grace Hana Hannah Hassan Helen Henry "
    "Hugo Ibrahim Ida Igor Ines Ingrid Isabel Ivan Jack Jamal James Jana Julia Kai Karim Karin Kate Kenji Kofi Lars "
    "Laura Lea Leo Lina Linus Lucas Lucy Malik Marco Maria Marie Mark Marta Max Maya Mei Mia Michael Mina Mohamed "
    "Nadia Nina Noah Nora Olga Oliver Omar Oscar Otto Paul Paula Pedro Petra Priya Rachel Rafael Ravi Rosa Ruth "
    "Samir Sara Sven Sofia Tariq Theo Thomas Tina Tom Uma Vera Victor Wei Yara Yusuf Zoe"
)
FIRST_NAMES = _FIRST_NAMES.split()

_LAST_NAMES = (
    "Adams Ahmed Allen Andersen Baker Bauer Becker Bell Berg Bianchi Brown Carter Castro Chen Clark Cohen Costa "
    "Cruz Dahl Davis Diaz Dubois Evans Farah Fischer Foster Garcia Ghosh Gomez Gray Green Gupta Haas Hall Hansen "
    "Harris Hill Horvat Huang Hughes Ito Ivanova Jansen Johnson Jones Kaya Keller Khan Kim King Klein Kovacs Kumar "
    "Lam Larsen Lee Lehmann Lewis Lopez Martin Mason Mehta Meyer Miller Moore Mori Morris Müller Mwangi Nguyen "
    "Nilsson Novak Okafor Olsen Ortiz Park Patel Perez Petrov Popescu Price Quinn Ramos Reed Reyes Rossi Russo Sato "
    "Schmidt Scott Sharma Silva Simon Singh Smith Sokolov Stone Suzuki Tanaka Taylor Thomas Torres Turner Ueda "
    "Vargas Vogel Walker Wang Weber White Wilson Wong Wood Wright Yamada Yilmaz Young Zhang Zimmermann"
)
LAST_NAMES = _LAST_NAMES.split()

CITIES = (
    ("Amsterdam", "Netherlands"), ("Athens", "Greece"), ("Auckland", "New Zealand"), ("Bangkok", "Thailand"),
    ("Barcelona", "Spain"), ("Berlin", "Germany"), ("Bogota", "Colombia"), ("Boston", "United States"),
    ("Brussels", "Belgium"), ("Budapest", "Hungary"), ("Buenos Aires", "Argentina"), ("Cairo", "Egypt"),
    ("Cape Town", "South Africa"), ("Chicago", "United States"), ("Copenhagen", "Denmark"), ("Dakar", "Senegal"),
    ("Delhi", "India"), ("Denver", "United States"), ("Dublin", "Ireland"), ("Geneva", "Switzerland"),
    ("Hamburg", "Germany"), ("Hanoi", "Vietnam"), ("Helsinki", "Finland"), ("Istanbul", "Turkey"),
    ("Jakarta", "Indonesia"), ("Kyoto", "Japan"), ("Lagos", "Nigeria"), ("Lima", "Peru"), ("Lisbon", "Portugal"),
    ("London", "United Kingdom"), ("Lyon", "France"), ("Madrid", "Spain"), ("Manila", "Philippines"),
    ("Melbourne", "Australia"), ("Milan", "Italy"), ("Montreal", "Canada"), ("Mumbai", "India"),
    ("Munich", "Germany"), ("Nairobi", "Kenya"), ("Oslo", "Norway"), ("Paris", "France"), ("Porto", "Portugal"),
    ("Prague", "Czechia"), ("Quito", "Ecuador"), ("Rome", "Italy"), ("Santiago", "Chile"),
    ("Seattle", "United States"), ("Seoul", "South Korea"), ("Singapore", "Singapore"), ("Stockholm", "Sweden"),
    ("Sydney", "Australia"), ("Tallinn", "Estonia"), ("Tokyo", "Japan"), ("Toronto", "Canada"),
    ("Tunis", "Tunisia"), ("Vienna", "Austria"), ("Warsaw", "Poland"), ("Zagreb", "Croatia"),
    ("Zurich", "Switzerland"),
)  # fmt: skip

_ADJECTIVES = (
    "amber ancient basic blue bright calm classic clear compact copper crimson dark deep digital double dry early "
    "easy electric empty extra fast flat fresh gentle giant gold grand green heavy hidden high indigo iron large "
    "light little long lunar magnetic mini modern narrow new northern old open orange pale plain portable premium "
    "purple quick quiet rapid red round royal sharp short silent silver simple slim small smart smooth soft solar "
    "solid spare standard steel strong sunny super tall thin tiny ultra violet warm white wide wild winter wireless "
    "wooden yellow young"
)
ADJECTIVES = _ADJECTIVES.split()

_NOUNS = (
    "adapter anchor apple arrow backpack basket battery bench blanket bottle bowl bridge brush bucket button "
    "cabinet cable camera candle chair charger clock coat compass cup curtain desk drill engine fan filter flag "
    "fork frame garden gate glass glove guitar hammer harbor helmet hinge house jacket kettle keyboard knife ladder "
    "lamp lantern lens lock magnet map mask meadow mirror monitor mountain mug needle notebook ocean oven paint pan "
    "panel paper pen pencil phone piano pillow pipe plate plug printer pump radio rail ring river road rope rug "
    "sail saw scale scarf screen sensor shelf shoe signal socket sofa spoon spring stone stove switch table tent "
    "ticket tool torch towel tower tray valve vase wagon wallet watch wheel whistle window wire wrench"
)
NOUNS = _NOUNS.split()

_VERBS = (
    "add archive audit build check clean close compare convert copy create debug delete deploy design document "
    "enable export extend fix format import improve index install load measure merge migrate monitor move optimize "
    "pack parse plan polish print profile publish rebuild reduce refactor release remove rename repair replace "
    "report reset restore review rewrite rotate schedule search send simplify sort split start stop sync test trace "
    "translate trim tune update upgrade validate verify write"
)
VERBS = _VERBS.split()
