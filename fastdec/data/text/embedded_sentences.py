"""What the embedded corpus is made of: lists of things, and sentences in English with German
wordings.

A field of a sentence is a slot of `fastdec.data.text.embedded`, perhaps numbered (`city2` differs
from `city`), perhaps in another form (`person_dat`, `country_to`). Each German wording has a
weight. Weights are unequal, so that there is a likeliest wording to learn, and others for
distillation to give up.
"""


# fmt: off: lists of words read better in lines than one word a line
def _words(text: str) -> list[str]:
  return text.split()


def _pairs(text: str) -> list[tuple[str, str]]:
  """'a=b, c=d' as pairs."""
  parts = (pair.split('=') for pair in text.split(', '))
  return [(left, right) for left, right in parts]


ARTICLELESS_COUNTRIES = _words(  # in German: 'in', 'nach' and 'aus' Andorra
  'AD AF AL AM AO AR AT AU AZ BB BD BE BF BG BH BI BJ BO BR BW BY BZ CA CL CM CN CO CR CU CY CZ DE'
  ' DJ '
  'DK DM DZ EC EE EG ER ES ET FI FJ FR GA GD GE GH GL GQ GR GT GY HN HR HT HU ID IE IL IN IS IT JM'
  ' JO '
  'JP KE KG KH KP KR KW KZ LA LI LK LR LS LT LU LV LY MA MC ME MG MK ML MT MU MW MX MY MZ NA NG NI'
  ' NO '
  'NP NZ PA PE PG PK PL PT PY QA RO RS RU RW SA SE SG SI SL SM SN SO SR SV SY TH TJ TM TN TO TW TZ'
  ' UG '
  'UY UZ VE VN WS ZA ZM ZW'
)
FEMININE_COUNTRIES = _words('CH MN SK TR UA')  # die Schweiz
MASCULINE_COUNTRIES = _words('IQ IR LB SD TD YE')  # der Irak
COUNTRIES = ARTICLELESS_COUNTRIES + FEMININE_COUNTRIES + MASCULINE_COUNTRIES
LANGUAGES = _words(  # 'Deutsch' and names in '-isch', which are declined alike
  'ab am ar az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fo fr fy ga hr hu hy id is'
  ' it '
  'ja ka kk ko ku ky lb lo lt lv mk mn ms mt nl no pl pt ro ru sk sl sq sr sv tg th tr uk uz vi zh'
)
CURRENCIES = _words('AUD CAD CHF CZK DKK EUR GBP INR ISK JPY MXN NOK NZD SEK TRY USD')
CITIES = _pairs(
  'Vienna=Wien, Munich=München, Cologne=Köln, Geneva=Genf, Prague=Prag, Warsaw=Warschau, Rome=Rom, '
  'Venice=Venedig, Naples=Neapel, Milan=Mailand, Brussels=Brüssel, Lisbon=Lissabon, Athens=Athen, '
  'Moscow=Moskau, Zurich=Zürich, Copenhagen=Kopenhagen, Nuremberg=Nürnberg, Hanover=Hannover, '
  'Beijing=Peking, Tokyo=Tokio, Cairo=Kairo, Bucharest=Bukarest, Belgrade=Belgrad, Krakow=Krakau, '
  'Florence=Florenz, Strasbourg=Straßburg, Berlin=Berlin, Hamburg=Hamburg, Leipzig=Leipzig, '
  'Dresden=Dresden, London=London, Paris=Paris, Madrid=Madrid, Dublin=Dublin, Oslo=Oslo, '
  'Stockholm=Stockholm, Helsinki=Helsinki, Budapest=Budapest, Boston=Boston, Chicago=Chicago, '
  'Toronto=Toronto, Sydney=Sydney, Nairobi=Nairobi, Salzburg=Salzburg, Bremen=Bremen, '
  'Rotterdam=Rotterdam'
)
PEOPLE = (  # English; German nominative, accusative, dative; whether a woman
  *(
    (name, (name,) * 3, True)
    for name in _words('Anna Laura Maria Clara Emma Julia Sophie Lena Nora')
  ),
  *(
    (name, (name,) * 3, False)
    for name in _words('Peter Paul Jonas Lukas David Felix Simon Tom Martin')
  ),
  ('the doctor', ('die Ärztin', 'die Ärztin', 'der Ärztin'), True),
  ('the engineer', ('die Ingenieurin', 'die Ingenieurin', 'der Ingenieurin'), True),
  ('the director', ('die Direktorin', 'die Direktorin', 'der Direktorin'), True),
  ('the mayor', ('die Bürgermeisterin', 'die Bürgermeisterin', 'der Bürgermeisterin'), True),
  ('my sister', ('meine Schwester', 'meine Schwester', 'meiner Schwester'), True),
  ('my aunt', ('meine Tante', 'meine Tante', 'meiner Tante'), True),
  ('our translator', ('unsere Übersetzerin', 'unsere Übersetzerin', 'unserer Übersetzerin'), True),
  ('the teacher', ('der Lehrer', 'den Lehrer', 'dem Lehrer'), False),
  ('the pilot', ('der Pilot', 'den Piloten', 'dem Piloten'), False),
  ('the journalist', ('der Journalist', 'den Journalisten', 'dem Journalisten'), False),
  ('my brother', ('mein Bruder', 'meinen Bruder', 'meinem Bruder'), False),
  ('my colleague', ('mein Kollege', 'meinen Kollegen', 'meinem Kollegen'), False),
  ('my neighbor', ('mein Nachbar', 'meinen Nachbarn', 'meinem Nachbarn'), False),
  ('our customer', ('unser Kunde', 'unseren Kunden', 'unserem Kunden'), False),
)
DOCUMENTS = _pairs(
  'the file=die Datei, the report=der Bericht, the contract=der Vertrag, the invoice=die Rechnung,'
  ' the '
  'photo=das Foto, the list=die Liste, the letter=der Brief, the calendar=der Kalender, the'
  ' draft=der '
  'Entwurf, the presentation=die Präsentation, the map=die Karte, the form=das Formular, the '
  'program=das Programm, the document=das Dokument, the recording=die Aufnahme, the timetable=der '
  'Fahrplan'
)
PRODUCTS = _pairs(
  'the camera=die Kamera, the bicycle=das Fahrrad, the winter coat=der Wintermantel, the tent=das'
  ' Zelt,'
  ' the washing machine=die Waschmaschine, the dictionary=das Wörterbuch, the armchair=der Sessel,'
  ' the '
  'lamp=die Lampe, the keyboard=die Tastatur, the suitcase=der Koffer, the guitar=die Gitarre, the '
  'coffee maker=die Kaffeemaschine, the desk=der Schreibtisch, the backpack=der Rucksack, the '
  'screen=der Bildschirm, the sewing machine=die Nähmaschine, the bookshelf=das Bücherregal'
)
MESSAGES = _pairs(
  'messages=Nachrichten, e-mails=E-Mails, comments=Kommentare, reports=Berichte, requests=Anfragen,'
  ' '
  'letters=Briefe, invitations=Einladungen, reviews=Bewertungen, notifications=Benachrichtigungen, '
  'questions=Fragen'
)
LIQUIDS = _pairs(
  'milk=Milch, water=Wasser, cream=Sahne, oil=Öl, lemon juice=Zitronensaft, white wine=Weißwein,'
  ' broth=Brühe'
)
FOODS = _pairs(
  'flour=Mehl, sugar=Zucker, butter=Butter, rice=Reis, cheese=Käse, chocolate=Schokolade, '
  'potatoes=Kartoffeln, tomatoes=Tomaten, mushrooms=Pilze, salt=Salz'
)

TEMPLATES = (
  (
    '{person} will travel from {country} to {country2} on {date}.',
    (
      (5, '{person} reist am {date} {country_from} {country2_to}.'),
      (3, 'Am {date} reist {person} {country_from} {country2_to}.'),
      (2, '{person} wird am {date} {country_from} {country2_to} reisen.'),
    ),
  ),
  (
    '{person} says that {person_they} has lived in {city} since {month} {year}.',
    (
      (5, '{person} sagt, dass {person_they} seit {month} {year} in {city} wohnt.'),
      (3, '{person} sagt, {person_they} wohne seit {month} {year} in {city}.'),
      (2, 'Seit {month} {year} wohnt {person} nach eigenen Angaben in {city}.'),
    ),
  ),
  (
    'The meeting on {fulldate}, starts at {time} and lasts {duration}.',
    (
      (5, 'Die Besprechung am {fulldate}, beginnt um {time} und dauert {duration}.'),
      (3, 'Am {fulldate}, beginnt um {time} die Besprechung, die {duration} dauert.'),
      (2, 'Die Sitzung am {fulldate}, fängt um {time} an und dauert {duration}.'),
    ),
  ),
  (
    'The train to {city} leaves at {time} from platform {platform}.',
    (
      (5, 'Der Zug nach {city} fährt um {time} von Gleis {platform} ab.'),
      (3, 'Um {time} fährt der Zug nach {city} von Gleis {platform} ab.'),
      (2, 'Der Zug nach {city} verlässt um {time} Gleis {platform}.'),
    ),
  ),
  (
    '{product} costs {price} if you order before {date}.',
    (
      (5, '{product} kostet {price}, wenn Sie vor dem {date} bestellen.'),
      (3, 'Wenn Sie vor dem {date} bestellen, kostet {product} {price}.'),
      (2, 'Bei einer Bestellung vor dem {date} kostet {product} {price}.'),
    ),
  ),
  (
    'You have {number} new {message} and {number2} unread {message2}.',
    (
      (5, 'Sie haben {number} neue {message} und {number2} ungelesene {message2}.'),
      (3, 'Für Sie gibt es {number} neue {message} und {number2} ungelesene {message2}.'),
      (2, 'Es liegen {number} neue {message} und {number2} ungelesene {message2} vor.'),
    ),
  ),
  (
    '{person} cannot come on {day} because {person_they} has to be in {city} at {clock}.',
    (
      (
        5,
        '{person} kann am {day} nicht kommen, weil {person_they} um {clock} in {city} sein muss.',
      ),
      (
        3,
        'Am {day} kann {person} nicht kommen, weil {person_they} um {clock} in {city} sein muss.',
      ),
      (
        2,
        '{person} kann am {day} nicht kommen, denn {person_they} muss um {clock} in {city} sein.',
      ),
    ),
  ),
  (
    'The distance between {city} and {city2} is {distance}.',
    (
      (5, 'Die Entfernung zwischen {city} und {city2} beträgt {distance}.'),
      (3, 'Zwischen {city} und {city2} liegen {distance}.'),
      (2, '{city} ist {distance} von {city2} entfernt.'),
    ),
  ),
  (
    'In {month} {year}, {percent} of the people in {country} spoke {language}.',
    (
      (5, 'Im {month} {year} sprachen {percent} der Menschen {country_in} {language}.'),
      (3, '{percent} der Menschen {country_in} sprachen im {month} {year} {language}.'),
      (2, '{country_in} sprachen im {month} {year} {percent} der Menschen {language}.'),
    ),
  ),
  (
    'The book was translated from {language} into {language2} by {person} in {year}.',
    (
      (
        5,
        'Das Buch wurde {year} von {person_dat} aus dem {language_dat} ins {language2_acc}'
        ' übersetzt.',
      ),
      (3, '{person} übersetzte das Buch {year} aus dem {language_dat} ins {language2_acc}.'),
      (
        2,
        '{person} hat das Buch im Jahr {year} aus dem {language_dat} ins {language2_acc}'
        ' übersetzt.',
      ),
    ),
  ),
  (
    'The {ordinal} session takes place on {day} at {clock} in {city}.',
    (
      (5, 'Die {ordinal} Sitzung findet am {day} um {clock} in {city} statt.'),
      (3, 'Am {day} findet um {clock} in {city} die {ordinal} Sitzung statt.'),
      (2, 'Die {ordinal} Sitzung wird am {day} um {clock} in {city} abgehalten.'),
    ),
  ),
  (
    'The package from {country} weighs {weight} and will arrive {ahead}.',
    (
      (5, 'Das Paket {country_from} wiegt {weight} und kommt {ahead} an.'),
      (3, 'Das Paket {country_from} wiegt {weight} und wird {ahead} ankommen.'),
      (2, 'Das {weight} schwere Paket {country_from} kommt {ahead} an.'),
    ),
  ),
  (
    '{document} was deleted by {person} {ago}.',
    (
      (5, '{document} wurde {ago} von {person_dat} gelöscht.'),
      (3, '{person} hat {document_acc} {ago} gelöscht.'),
      (2, '{ago} hat {person} {document_acc} gelöscht.'),
    ),
  ),
  (
    'It is {temperature} in {city} today, and tomorrow we expect {temperature2}.',
    (
      (5, 'In {city} sind es heute {temperature}, und morgen erwarten wir {temperature2}.'),
      (3, 'Heute sind es in {city} {temperature}, und morgen werden {temperature2} erwartet.'),
      (2, 'In {city} sind es heute {temperature}; für morgen erwarten wir {temperature2}.'),
    ),
  ),
  (
    'Would you like to change the language of {document} from {language} to {language2}?',
    (
      (5, 'Möchten Sie die Sprache für {document_acc} von {language} auf {language2} ändern?'),
      (3, 'Möchten Sie die Sprache für {document_acc} von {language} auf {language2} umstellen?'),
      (2, 'Soll die Sprache für {document_acc} von {language} auf {language2} umgestellt werden?'),
    ),
  ),
  (
    'Your subscription costs {price} per month and ends on {date}.',
    (
      (5, 'Ihr Abonnement kostet {price} pro Monat und endet am {date}.'),
      (3, 'Ihr Abonnement kostet monatlich {price} und läuft am {date} ab.'),
      (2, 'Ihr Abonnement endet am {date} und kostet {price} im Monat.'),
    ),
  ),
  (
    'If {person} misses the bus to {city} at {clock}, {person_they} will have to wait {duration}.',
    (
      (
        5,
        'Wenn {person} um {clock} den Bus nach {city} verpasst, muss {person_they} {duration}'
        ' warten.',
      ),
      (
        3,
        'Verpasst {person} um {clock} den Bus nach {city}, muss {person_they} {duration} warten.',
      ),
      (
        2,
        '{person} muss {duration} warten, wenn {person_they} um {clock} den Bus nach {city}'
        ' verpasst.',
      ),
    ),
  ),
  (
    '{person} exchanged {amount} for {amount2} in {city}.',
    (
      (5, '{person} hat in {city} {amount} gegen {amount2} getauscht.'),
      (3, '{person} tauschte in {city} {amount} gegen {amount2}.'),
      (2, 'In {city} hat {person} {amount} gegen {amount2} eingetauscht.'),
    ),
  ),
  (
    'The museum in {city} is closed every {day} and opens at {clock} on all other days.',
    (
      (
        5,
        'Das Museum in {city} ist jeden {day} geschlossen und öffnet an allen anderen Tagen um'
        ' {clock}.',
      ),
      (
        3,
        'Jeden {day} bleibt das Museum in {city} geschlossen; an allen anderen Tagen öffnet es um'
        ' {clock}.',
      ),
      (2, 'Das Museum in {city} hat {day_every} geschlossen und öffnet sonst um {clock}.'),
    ),
  ),
  (
    'In {country}, the population grew by {percent} between {span} and {span_end}.',
    (
      (5, '{country_in} wuchs die Bevölkerung zwischen {span} und {span_end} um {percent}.'),
      (
        3,
        'Zwischen {span} und {span_end} ist die Bevölkerung {country_in} um {percent} gewachsen.',
      ),
      (2, 'Die Bevölkerung {country_in} nahm zwischen {span} und {span_end} um {percent} zu.'),
    ),
  ),
  (
    'We have booked {number} rooms in {city} for {number2} guests from {country}.',
    (
      (5, 'Wir haben in {city} {number} Zimmer für {number2} Gäste {country_from} gebucht.'),
      (3, 'Für {number2} Gäste {country_from} haben wir in {city} {number} Zimmer gebucht.'),
      (2, 'In {city} haben wir {number} Zimmer für {number2} Gäste {country_from} reserviert.'),
    ),
  ),
  (
    'Do you know whether {person} has already sent {document} to {person2}?',
    (
      (5, 'Wissen Sie, ob {person} {document_acc} schon an {person2_acc} geschickt hat?'),
      (3, 'Wissen Sie, ob {person} {person2_dat} {document_acc} schon geschickt hat?'),
      (2, 'Ist Ihnen bekannt, ob {person} {document_acc} bereits an {person2_acc} gesendet hat?'),
    ),
  ),
  (
    '{person} asked {person2} to call back on {day} after {time}.',
    (
      (5, '{person} hat {person2_acc} gebeten, am {day} nach {time} zurückzurufen.'),
      (3, '{person} bat {person2_acc}, am {day} nach {time} zurückzurufen.'),
      (2, '{person} bat {person2_acc} darum, am {day} nach {time} zurückzurufen.'),
    ),
  ),
  (
    'For {number} guests, this recipe needs {volume} of {liquid} and {weight} of {food}.',
    (
      (
        5,
        'Für {number} Gäste braucht man bei diesem Rezept {volume} {liquid} und {weight} {food}.',
      ),
      (3, 'Dieses Rezept erfordert für {number} Gäste {volume} {liquid} und {weight} {food}.'),
      (
        2,
        'Bei diesem Rezept benötigt man für {number} Gäste {volume} {liquid} und {weight} {food}.',
      ),
    ),
  ),
)
