"""Words that announce a phone number, in the languages of the web: tel, телефон, 電話, โทร.

    the bytes before a number  ->  words, read backwards  ->  folded letters  ->  a hash  ->  a keyword or a filler of the table

Letters are folded: small, without accents and other nonspacing marks, fullwidth ones as ASCII,
composed or not. In scripts with spaces a whole word counts, in those without the end of a run of
letters (联系电话). Pages mix languages, so a word that precedes other things in some language is left
out: `kom` (Polish: mobile; Swedish: came), `CEP` (Turkish: mobile; Portuguese: postal code), `HP`.
"""

import unicodedata
from functools import cache
from typing import Any

import numpy as np

from datapipe.kernels import inline
from datapipe.kernels.redact.ascii import FENCE, LETTER, is_in
from datapipe.kernels.redact.emails import SPACED, UNSPACED, script_of
from datapipe.kernels.tables import stored_table
from datapipe.kernels.text.unicode_classes import decode_before

WORDS = """
tel tels telephone telephones phone phones cellphone cellphones landline fax faxes facsimile mobile mobiles mob cell cellular
handphone call calls calling dial dialing reach text sms desk ph hotline helpline contact contacts telecopy
whatsapp whats whatsap whatsup zap viber
telefon telefonnummer telefonnr telefonisch fon mobil mobilfunk mobilnummer mobilnr mobiltelefon handy handynummer telefax
telefaks faks faxnummer rufnummer rufnummern anrufen kontakt kontakte hotlines
telefoon telefoonnummer telefonisch mobiel mobielnummer bel bellen gsm faxnummer
tlf tlph mobilnummer telefonnumre faksnummer puhelin puhelinnumero puh matkapuhelin gsm faksi soita simi farsimi
téléphone téléphones tél téls portable télécopie télécopieur appelez appeler joindre contactez fixe
teléfono teléfonos telf telfs tfno tfnos tlfno tlfo móvil móviles celular celulares cel fijo llame llama llamar
llámanos llámenos llamada contacto contactos contáctanos contáctenos
telefone telefones telemóvel telemóveis tlm tlmv fone fones fonefax contato contatos contate
telefono telefoni telefonica cell cellulare cellulari cel chiama chiamare chiamaci chiamate contatti contattaci recapito
recapiti centralino telefonoa mugikorra telèfon mòbil truqueu
telefonu telefony telefonem telefonie telefoniczny telefonicznie komórka komórkowy zadzwoń dzwoń infolinia kontaktowy
telefonní telefonicky volejte zavolejte volajte mobilní mobilu
telefonszám telefonon hívja hívjon mobilszám telefonul sunați sună
mobitel mobilni nazovite pozovite pokličite tālrunis tālr tālruņi telefonas telefonai tel mob telefonid telefonil mobiiltelefon
telefonunuz telefonumuz telefonlar arayın arayınız arayin iletişim telefoni celulari
telepon telp tlp telpon ponsel faksimili faksimile faks hubungi kontak telefon telepono selpon simu nukushi ffôn guthán
selfoon foon thoại đt đtdđ sđt gọi
тел тлф телефон телефоны телефона телефону телефоном телефонам телефоне моб мобильный мобильного мобильному мобильник
сот сотовый сотового факс факса факсу факсом звоните звонить звони позвоните
контакт контакты контактный ватсап вотсап вацап вайбер вайбером
телефони телефонів мобільний мобільного дзвоніть телефонуйте зателефонуйте контактний вайбер ватсапп тэлефон тэл мабільны
телефонен телефони обадете мобилен джиесем мобител позовите контактни јавете утас байланыс телефондар телефоны
τηλ τηλέφωνο τηλέφωνα τηλεφώνου τηλεφώνων τηλεφωνικά τηλεφωνικό κιν κινητό κινητού φαξ καλέστε επικοινωνία επικοινωνίας σταθερό
հեռ հեռախոս հեռախոսահամար ֆաքս բջջ ტელ ტელეფონი მობ მობილური ფაქსი
هاتف الهاتف هواتف هاتفي هاتفيا تليفون التليفون تلفون التلفون جوال الجوال موبايل الموبايل محمول المحمول نقال النقال فاكس الفاكس
واتساب الواتساب واتس اتصل اتصلوا للاتصال الاتصال للتواصل
تلفن تلفنی موبایل همراه تماس فکس نمابر دورنگار واتساپ فون ٹیلیفون فیکس رابطہ موبائل
טלפון הטלפון טלפונים בטלפון לטלפון טל נייד הנייד סלולרי סלולארי פקס בפקס התקשרו חייגו וואטסאפ ווטסאפ
फोन फ़ोन टेलीफोन टेलीफ़ोन टेलिफोन दूरभाष दूरध्वनी भ्रमणध्वनी मोबाइल मोबाईल फैक्स फॅक्स संपर्क सम्पर्क कॉल व्हाट्सएप व्हाट्सऐप
ফোন টেলিফোন মোবাইল মুঠোফোন ফ্যাক্স যোগাযোগ தொலைபேசி கைபேசி அலைபேசி போன் மொபைல் தொடர்புக்கு ఫోన్ మొబైల్ సెల్
ಫೋನ್ ಮೊಬೈಲ್ ದೂರವಾಣಿ ഫോൺ മൊബൈൽ ફોન મોબાઇલ મોબાઈલ ਫੋਨ ਫ਼ੋਨ ਮੋਬਾਈਲ දුරකථන දුරකථනය ජංගම ስልክ
电话 電話 手机 手機 手机号 传真 傳真 座机 固话 热线 熱線 致电 致電 拨打 撥打 联系 聯繫 聯絡 联络 联系我们 聯絡我們
联系方式 聯絡方式 热线电话
携帯 携帯電話 固定電話 ファックス ファクス ファクシミリ 連絡先 お問い合わせ お問合せ お問い合わせ先 お問合せ先
問い合わせ先 問合せ先 直通 フリーダイヤル テレフォン でんわ
전화 대표전화 휴대폰 휴대전화 핸드폰 팩스 연락처 연락 문의 문의처 고객센터
โทร โทรศัพท์ โทรสาร มือถือ โทรศัพท์มือถือ แฟกซ์ แฟ็กซ์ ติดต่อ ติดต่อเรา เบอร์ เบอร์โทร สายด่วน โทรเลย โทรหา
ໂທ ໂທລະສັບ ແຟັກ ទូរស័ព្ទ ទូរសព្ទ ទូរសារ ဖုန်း ဖုန်းနံပါတ် ဖက်စ်
"""
"""By language: European ones in Latin letters, Turkish, Indonesian and Vietnamese; then Cyrillic, Greek, Armenian,
Georgian, Arabic, Hebrew, the scripts of India, Chinese, Japanese, Korean, and those of South East Asia."""
FILLERS = """
number numbers no nr num is was at on me us our my your the or to home office work direct line free toll and
nummer nummern unter dem der die uns ist oder vom an werktags nummeret på ring til
numéro numéros no le la au aux du de des par nous notre est ou votre
número números nro núm al el los por en o a es nuestro
n.º no ao nos pelo pela nosso
numero numeri il lo allo al ai
numer numeru pod nam lub kom komórkowego číslo čísla číslech na nám
numara numarası numaramız numaralı nomor nombor nomer bimbit số máy liên hệ szám
номер номера номеру номером номерам номерах по на нам для и или связи справок городской рабочий доб код довідок за ни нас на
номери або αριθμός στο στον και κλήσεων κέντρου
رقم أرقام الرقم على بنا معنا أو و شماره نمبر מס מספר או
नंबर नम्बर नं सूत्र क्रमांक पर करें নম্বর নং எண் నంబర్ సంఖ్య ನಂಬರ್ നമ്പർ નંબર ਨੰਬਰ අංකය
号码 號碼 番号 번호 代表 我们 หมายเลข ที่ เลขที่
"""
"""Words that may stand between a keyword and the number."""
SYMBOLS = "☎☏✆℡📞📱📲📠🕿🕾🕽"  # Signs that announce a number like a word
_PARTICLES = "は 는 은 번 번호 번호는 로 으로 番号 番号は 号码 號碼 号码是 是 为 為"
"""What may join a keyword of a script without spaces."""
_FOLDED_RANGES = ((0x80, 0xE80), (0x1E00, 0x2000), (0x3040, 0x3100), (0xFF00, 0xFFA0))
_LETTERS_ALONE = str.maketrans("đðłøħı", "ddlohi")
_LAST_MARK = 0x3100
_MOST_CHARACTERS, _MOST_BYTES, _MOST_WORDS = 40, 100, 4
_NO_WORD, _FILLER, _WORD = 0, 1, 2
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_FULLWIDTH_ZERO, _FULLWIDTH_NINE = 0xFF10, 0xFF19


def folded(text: str) -> str:
    """The letters of a text, small, without accents and other nonspacing marks. Hangul is as it is written."""
    return "".join(_folded_letter(letter) for letter in text)


@cache
def _folded_letter(letter: str) -> str:
    if unicodedata.category(letter) == "Mn" or letter == "ـ":
        return ""
    if not letter.isascii() and not any(first <= ord(letter) < stop for first, stop in _FOLDED_RANGES):
        return letter
    parts = unicodedata.normalize("NFKD", letter.casefold())
    bases = "".join(part for part in parts if unicodedata.category(part) != "Mn").translate(_LETTERS_ALONE)
    return bases if len(bases) == 1 else letter


@stored_table
def _folds() -> tuple[np.ndarray, np.ndarray]:
    """Code points beyond ASCII that fold to another, in order, and what they fold to; 0 for nothing."""
    folds = {code: 0 for code in range(0x300, _LAST_MARK) if unicodedata.category(chr(code)) == "Mn"}
    for first, stop in _FOLDED_RANGES:
        letters = {code: _folded_letter(chr(code)) for code in range(first, stop)}
        folds |= {code: ord(letter) if letter else 0 for code, letter in letters.items() if letter != chr(code)}
    codes = np.array(sorted(folds), np.int64)
    return codes, np.array([folds[code] for code in codes.tolist()], np.int64)


def spellings(words: str) -> set[str]:
    """Folded words, with Hangul composed and decomposed, and the words of scripts without spaces with a particle."""
    listed = words.split()
    listed += [word + particle for word in listed if ord(word[0]) > 0xE00 for particle in _PARTICLES.split()]
    return {folded(unicodedata.normalize(form, word)) for word in listed for form in ("NFC", "NFD")}


def _hash(word: str) -> int:
    value = 0
    for letter in reversed(word):
        value = (value * int(_FACTOR) + ord(letter)) % (1 << 64)
    return value


@stored_table
def _table() -> tuple[np.ndarray, np.ndarray]:
    """The hashes of all words in order, uint64, and whether each is a `_FILLER` or a `_WORD`."""
    sorts = dict.fromkeys(map(_hash, (folded(word) for word in FILLERS.split())), _FILLER)
    sorts |= dict.fromkeys(map(_hash, spellings(WORDS)), _WORD)
    hashes = np.array(sorted(sorts), np.uint64)
    return hashes, np.array([sorts[value] for value in hashes.tolist()], np.uint8)


_CODES, _FOLDS = _folds()
_HASHES, _SORTS = _table()
_SYMBOL_CODES = np.array(list(map(ord, SYMBOLS)), np.int64)


@inline
def _place(values, value) -> Any:
    """The place of a value in a sorted array; -1 where it is not there."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low if low < len(values) and values[low] == value else -1


@inline
def _fold(code) -> Any:
    if code < 0x80:
        return code | 0x20
    place = _place(_CODES, code)
    return code if place < 0 else _FOLDS[place]


@inline
def _sort_of(code) -> Any:
    """SPACED or UNSPACED for letters and marks, 0 for all other characters."""
    if code < 0x80:
        return SPACED if is_in(code, LETTER) else 0
    return script_of(code)


@inline
def _word_start(data, begin, low, stop) -> Any:
    """The start and sort of the word before `stop`; a keyword may end letters without spaces."""
    j, hashed, first_sort = stop, np.uint64(0), 0
    while j > low:
        code, size = decode_before(data, j, begin)
        sort = _sort_of(code)
        if sort == 0 or (j < stop and sort != first_sort):
            break
        first_sort = sort
        letter = _fold(code)
        j -= size
        if letter != 0:
            hashed = hashed * _FACTOR + np.uint64(letter)
        place = _place(_HASHES, hashed) if sort == UNSPACED else -1
        if place >= 0 and _SORTS[place] == _WORD:
            return j, _WORD
    is_cut = j <= low and j > begin
    place = -1 if is_cut else _place(_HASHES, hashed)
    return j, (np.int64(_SORTS[place]) if place >= 0 else _NO_WORD)


@inline
def follows_phone_word(data, begin, start) -> Any:
    """Whether one of the last four words before `start` announces a phone number, with only fillers after it. The search goes
    back 40 characters and 100 bytes at most and ends at a digit, `<` or `>`."""
    low, num_characters = start, 0
    limit = max(begin, start - _MOST_BYTES)
    while low > limit and num_characters < _MOST_CHARACTERS:
        _, size = decode_before(data, low, begin)
        low -= size
        num_characters += 1
    j = start
    for _ in range(_MOST_WORDS):
        while j > low:
            code, size = decode_before(data, j, begin)
            if (code < 0x80 and is_in(code, FENCE)) or _FULLWIDTH_ZERO <= code <= _FULLWIDTH_NINE:
                return False
            if _is_symbol(code):
                return True
            if _sort_of(code) != 0:
                break
            j -= size
        if j <= low:
            return False
        j, sort = _word_start(data, begin, low, j)
        if sort != _FILLER:
            return sort == _WORD
    return False


@inline
def _is_symbol(code) -> Any:
    is_symbol = False
    for symbol in _SYMBOL_CODES:
        is_symbol |= symbol == code
    return is_symbol
