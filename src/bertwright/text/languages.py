"""language codes of ISO 639 → the code by which sentence rules are named."""

import re
from typing import Final

_CODE: Final = re.compile(r"[a-z]{2,3}(-[a-z0-9]+)*")
_TWO_AND_THREE_LETTERS: Final = """
    aa:aar ab:abk ae:ave af:afr ak:aka:fat am:amh an:arg ar:ara:arb as:asm av:ava ay:aym:ayr az:aze:azj ba:bak
    be:bel bg:bul bh:bih bi:bis bm:bam bn:ben bo:bod:tib br:bre bs:bos ca:cat ce:che ch:cha co:cos cr:cre:cwd
    cs:ces:cze cu:chu cv:chv cy:cym:wel da:dan de:deu:ger dv:div dz:adp:dzo ee:ewe el:ell:gre en:eng eo:epo es:spa
    et:ekk:est eu:baq:eus fa:fas:per:pes ff:fuc:ful fi:fin fj:fij fo:fao fr:fra:fre fy:fry ga:gle gd:gla gl:glg
    gn:grn:gug gu:guj:prp gv:glv ha:hau he:heb hi:hin ho:hmo hr:hrv:scr ht:hat hu:hun hy:arm:hye hz:her ia:ina
    id:ind ie:ile ig:ibo ii:iii ik:esk:ipk io:ido is:ice:isl it:ita iu:ike:iku ja:jpn jv:jav ka:geo:kat kg:kng:kon
    ki:kik kj:kua kk:kaz kl:kal km:khm kn:kan ko:kor kr:kau:knc ks:kas ku:kmr:kur kv:kom:kpv kw:cor ky:kir la:lat
    lb:ltz lg:lug li:lim ln:lin lo:lao lt:lit lu:lub lv:lav:lvs mg:mlg:plt mh:mah mi:mao:mri mk:mac:mkd ml:mal
    mn:drh:khk:mon mr:mar ms:may:msa:zsm mt:mlt my:bur:mya na:nau nb:nob nd:nde ne:nep:npi ng:ndo nl:dut:nld nn:nno
    no:nor nr:nbl nv:nav ny:nya oc:oci oj:ojg:oji om:gaz:orm or:ori:ory os:oss pa:pan pi:pli pl:pol ps:pbu:pus
    pt:por qu:que:quz rm:roh rn:run ro:ron:rum ru:rus rw:kin sa:cls:san sc:src:srd sd:snd se:sme sg:sag sh:hbs
    si:sin sk:slk:slo sl:slv sm:smo sn:sna so:som sq:alb:sqi sr:scc:srp ss:ssw st:sot su:sun sv:swe sw:swa:swh
    ta:tam te:tel tg:tgk th:tha ti:tir tk:tuk tl:tgl tn:tsn to:ton tr:tur ts:tso tt:tat tw:twi ty:tah ug:uig uk:ukr
    ur:urd uz:uzb:uzn ve:ven vi:vie vo:vol wa:wln wo:wol xh:xho yi:ydd:yid yo:yor za:zha:zyb zh:chi:cmn:zho zu:zul
"""
"""Codes of ISO 639-1, and two more that Wikipedias still use (bh, sh), each with those of ISO 639-2 and 639-3."""
_THREE_LETTERS: Final = {two: three for two, *three in (entry.split(":") for entry in _TWO_AND_THREE_LETTERS.split())}
_TWO_LETTERS: Final = {code: two for two, three in _THREE_LETTERS.items() for code in (two, *three)}


def known_language(name: str) -> str:
    """Return the language code by which sentence rules are named: `de` for de, DE, de-AT, deu and ger.

    A language without a code of two letters keeps its own. Raises ValueError for an unknown code, for which the package
    `sentencex` would use English without a message.
    """
    code = name.lower()
    language = code.partition("-")[0]
    if not _CODE.fullmatch(code) or (len(language) == 2 and language not in _TWO_LETTERS):
        raise ValueError(
            f"{name!r} is no language; allowed are the two letters of ISO 639-1, such as en or ko, or the three "
            "letters of ISO 639-3, such as ast"
        )
    if code == "nds-nl":  # Low German of the Netherlands has rules of its own
        return code
    is_region = re.fullmatch("[a-z]{2}|[0-9]{3}", code.removeprefix(f"{language}-"))
    return _TWO_LETTERS.get(language, language if is_region else code)
