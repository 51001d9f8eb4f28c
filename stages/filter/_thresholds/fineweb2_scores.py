"""The least score of each language in FineWeb-2, by the labels of GlotLID.

    least_score("deu_Latn", 0.65)  ->  0.821

Source: `language_score` of the 1,929 files `configs/<label>.yml` of github.com/huggingface/fineweb-2 (commit d0defb2). All
lie between 0.3 and 0.9. 1,102 labels have 0.3, and here so do labels without a file, but for English, which FineWeb holds.
"""

from __future__ import annotations

from functools import lru_cache

_LEAST = 0.3
# A score, then the languages that have it; those without a script are in Latin letters.
_TABLE = """
0.302 mug 0.303 ium 0.304 acm_Arab caq nin 0.305 arq_Arab 0.306 wmt 0.307 lfn_Cyrl 0.308 rhg 0.311 ayp_Arab qvw 0.312 lki_Arab
prq spy 0.313 mrq 0.315 ayo bho_Deva 0.316 aeb_Arab cuc mtj 0.317 sbs 0.318 mog 0.319 tiy 0.32 cou crn dzo_Tibt ixl tuf 0.321
car enq 0.324 ady_Cyrl agx_Cyrl 0.325 anp_Deva 0.327 dug lrc_Arab smn 0.33 awx mev 0.331 nwx_Deva sxb 0.332 cjs_Cyrl 0.333 sgz
0.334 bkd 0.336 fuh 0.337 aln 0.338 snf yby 0.339 arz_Arab csb kqe 0.34 bmv 0.342 mmx nsu nzm 0.344 awa_Deva 0.345 did tgo
0.346 mwv njz 0.347 suc 0.348 kpw 0.35 kki 0.353 adl 0.355 mrj_Cyrl 0.356 mui 0.357 nog_Cyrl 0.36 tbw 0.366 fud 0.367 lcp_Thai
0.368 cgc 0.369 rmn_Grek 0.37 gnw 0.371 sby 0.372 raw 0.375 cui cwe 0.377 nsm 0.379 mfq oku 0.382 klv 0.386 lzh_Hani 0.387 hra
0.388 cgg 0.389 enm iri 0.39 swb 0.392 led 0.394 cnl ssd 0.395 lob tbl 0.396 ndj 0.397 wuv 0.399 pcd 0.4 hin 0.404 klt 0.405
srp 0.406 nhk 0.407 ars_Arab boj 0.408 nyo 0.41 mai_Deva 0.411 bew 0.412 yue_Hani 0.413 urd 0.414 ptu yss 0.418 ary_Arab tlf
0.42 hoc swc 0.424 rmq 0.425 chu_Cyrl 0.426 xtd 0.429 crk 0.431 fao tcy_Knda 0.434 msc 0.435 lgl 0.437 mxv 0.438 ots 0.439 gwr
0.44 are bwd mip 0.441 gur 0.444 djk 0.445 tkr_Cyrl 0.446 crk_Cans 0.448 glk_Arab 0.449 thl_Deva 0.451 gul ojb_Cans 0.458 leu
0.459 fuf 0.463 cri mtp 0.465 kck 0.467 hrv 0.473 toc 0.474 kpq 0.475 hoc_Wara 0.478 kbo 0.48 mnw_Mymr 0.484 kqa 0.485
orv_Cyrl ory 0.488 btd 0.494 hmr 0.496 nij 0.498 cop_Copt 0.5 kaa_Cyrl 0.505 bla oym 0.506 rmn_Cyrl 0.51 dww 0.514 ota_Arab
0.515 ike_Cans tkl 0.516 bis bos qub 0.518 cos lld wal_Ethi 0.519 diq rcf 0.521 prg zca 0.526 eri 0.527 csy 0.528 pww_Thai
0.529 blk_Mymr 0.534 waj 0.535 wln 0.537 myx 0.54 pau 0.541 hrx 0.544 cce 0.545 mjc tet 0.549 ige 0.55 enb soe 0.554 nla 0.555
kek 0.556 sil 0.557 kwy 0.558 swg 0.562 shp 0.563 tcz 0.57 yrb 0.571 stq 0.572 gdn 0.574 mlp 0.575 hak kin nwb 0.578 heh 0.579
gnd 0.58 yat 0.581 mib 0.583 nhe 0.587 vut 0.588 qup 0.59 nza yrk_Cyrl 0.591 stp taj_Deva 0.593 snc 0.594 hix 0.595 khs 0.596
dng_Cyrl kpv_Cyrl nah 0.597 amm 0.6 got_Goth slv zar 0.602 tbo 0.603 apu ljp 0.606 kdh urk_Thai 0.607 kyf pms 0.608 cao 0.61
etr 0.611 ton xal_Cyrl 0.615 nca 0.616 arr bgz 0.618 zaw zsm 0.619 plt 0.621 mhy mps nlc roo 0.622 aoj bxr_Cyrl rwo 0.623 lus
0.624 akb kpg 0.625 mio uvl 0.626 cap 0.627 rng 0.628 ign tlh 0.629 gam swe wos 0.63 amr mwp shk suk 0.631 bhl uzn 0.632 lgg
snd_Deva 0.633 cbr 0.635 bfo cni gai 0.636 bqp hak_Hani pot tfr 0.637 big gla gyr 0.638 ekk gum knj lid 0.639 kxw quw 0.64 xtm
0.641 kpf 0.642 cpa dtp nyy tyv_Cyrl 0.643 kgf khz zpc 0.644 ada bsn gah mhi spl 0.645 kab 0.646 gdr 0.647 akh 0.648 sbl
skr_Arab 0.649 szb 0.65 ctd gym kum_Cyrl 0.6503 nan 0.651 usp yli 0.652 agn gub mpx mwq 0.653 mti tgp zos 0.654 bzh cav kbm
otd toh xed 0.655 heg rup 0.656 alp boa cor 0.657 cbv hbo_Hebr 0.658 bav bvz dyo 0.659 ubu yal 0.66 che_Cyrl 0.661 gun pio wnc
0.662 bbb 0.663 bch grt_Beng kcg mkl rad wwa 0.664 quf tnn 0.666 bbr tuk 0.667 adz aso cfm cha slk tac zpz 0.668 ajz ifk 0.669
djr mca tee wer 0.67 apb mam nwi whk 0.671 bci gfk 0.672 imo 0.673 nnh tpt 0.674 arl muh 0.675 gos moa tte 0.676 mnx 0.677 gcf
0.678 aii_Syrc hye_Armn mej myk ndz soy sua tcf 0.679 txu 0.68 fil mta vol 0.681 acu mhr_Cyrl rro xla 0.682 bod_Tibt 0.683 aau
mee naw 0.684 nko 0.685 ind suz_Deva 0.686 dah ken kwi opm 0.687 cut fal pck xmf_Geor 0.688 avt tog 0.689 nld pol 0.69
lez_Cyrl 0.691 aom lad_Hebr lao_Laoo naf nfa sri sus_Arab 0.692 bpr cmn_Hani hin_Deva ote 0.693 dua poh 0.694 prf tpm 0.695
aeu maw 0.696 cax pri 0.697 ido mhw syc_Syrc 0.698 cbs 0.699 asm_Beng irk lit 0.7 tsg 0.701 cya eus kpr tem 0.702 geb hay ino
0.703 otq pab 0.704 aaz otn shn_Mymr ziw 0.705 cak 0.708 kyc 0.709 auy bba krj nhw 0.711 arb_Arab nou yaq 0.712 bgr ify 0.713
ckb_Arab isd 0.714 ava_Cyrl urt 0.716 gux ifa kyg nop oss_Cyrl 0.717 jbu omw san ssx 0.718 dyu kha nbq 0.719 ipi roh 0.72 dur
gom_Deva lcm mcq 0.721 gvf mbh neb 0.722 smk tel_Telu 0.723 crh_Cyrl fry med 0.724 kze otm ppo yre 0.726 att 0.727 lat zat
0.728 agd asg cas got guj_Gujr mkn pbc 0.729 mor yka 0.73 apr dar_Cyrl kbd_Cyrl tmd 0.732 chv_Cyrl pnb_Arab 0.734 inb mxp
0.736 brx_Deva gqr jiv ozm 0.737 gog mbi 0.738 pbi 0.739 bao sml 0.74 awb 0.741 bim snp zac 0.742 btx 0.743 ann 0.744 hun mnf
yle 0.745 cym sey 0.746 kao mif mit sgb 0.747 rnl 0.748 any cbt cnh mih 0.75 xbr 0.751 agt 0.752 knk 0.754 mna 0.755 aai dgi
nas okv 0.756 kir_Cyrl 0.757 als ikk usa 0.759 buk crx kez tok 0.76 gnn npl 0.762 gng gya knv lee mfi tod 0.764 fin 0.765 emp
lbb maj 0.766 tgk_Cyrl 0.767 anv hto mza 0.768 jbo 0.769 trq 0.77 yut 0.771 izr 0.772 lfn 0.775 kxc_Ethi mig 0.776 ahk xtn
0.777 acr iws kue thk 0.778 bbc 0.779 ife 0.781 lmp nab 0.782 abx ata lip 0.783 bdd duo mim pad vag 0.784 cjv 0.787 bjv 0.788
maz 0.789 lbe_Cyrl zia 0.79 bxh 0.792 zpl 0.794 kdl ksd kyz 0.795 pbt_Arab pwg sny 0.796 hyw_Armn 0.797 chr_Cher san_Deva
0.798 sin_Sinh 0.799 jra mni_Mtei pjt por 0.8 hig vun 0.802 cwt ian lhu vie 0.803 haw men 0.804 mlh 0.805 aia 0.806 bcw luc
tue 0.807 mop 0.808 nii snn 0.809 bre 0.81 atg mww 0.811 mgc tat 0.812 abk_Cyrl 0.813 nob 0.814 coe grc_Grek 0.815 cat hag msy
snd_Arab 0.816 bpy_Beng 0.817 ita uzn_Cyrl 0.819 dgc nim 0.82 amu 0.821 deu mzw ydd_Hebr 0.822 biv cko iou ron sat_Olck 0.823
mil 0.824 cnt fra 0.825 ade hot 0.826 ell_Grek nak udu 0.829 srm 0.83 bex mcu 0.832 aby bdh sur 0.834 akp 0.836 sja xsm 0.837
epo 0.838 auc 0.839 mya_Mymr 0.84 pan_Guru spa 0.841 agm bjr 0.842 agu kor_Hang 0.843 nhr 0.844 kaz_Cyrl 0.845 chz gmv_Ethi
0.846 keo kyq mxq 0.847 urd_Arab 0.848 crl_Cans des 0.849 meq 0.85 fas_Arab 0.851 sbd 0.852 mbt vmy 0.853 kkj 0.854 ngb 0.855
gvl 0.858 kmr 0.859 bmu mxt 0.86 cso tat_Cyrl 0.861 lem nqo_Nkoo 0.863 isl 0.864 mks 0.865 mqb 0.866 cux 0.871 bco cco 0.872
ben_Beng dnj srp_Cyrl 0.873 tby uig_Cyrl 0.874 kqw uig_Arab 0.875 blz gbo tur 0.876 abq_Cyrl aji sbe 0.877 chj miy 0.878 agg
gej 0.879 mxb mzm 0.88 ces mkd_Cyrl tim 0.881 wrk 0.882 bfd urb 0.883 kus mto 0.884 miz mpm 0.886 byr jpn_Jpan tbc 0.888 aoi
tam_Taml 0.889 khk_Cyrl maa tnk xrb 0.89 cme 0.891 azj_Cyrl xsi 0.892 bel_Cyrl cta dak lif_Deva nif 0.893 bus gso kno 0.894
tos 0.896 bnp dyi npi_Deva 0.898 bud 0.899 tca 0.9 aak abt aca acd ake avu bak_Cyrl bib blh box bqc bul_Cyrl cjp cle div_Thaa
dob dop dts gde heb_Hebr kan_Knda kat_Geor kqp ksw_Mymr kwd lef lia mal_Mlym mar_Deva mfz mwm myy ncu nfr ntr pir rav_Deva
rus_Cyrl sig spp tbz ter tha_Thai tnp tuo ukr_Cyrl xsu xuo zty
"""


def least_score(label: str, english: float) -> float:
    """The least score of a language by its label, ISO 639-3 and script; `english` for English."""
    return english if label == "eng_Latn" else _scores().get(label, _LEAST)


@lru_cache(maxsize=1)
def _scores() -> dict[str, float]:
    scores, score = dict[str, float](), _LEAST
    for word in _TABLE.split():
        if word[0].isdigit():
            score = float(word)
        else:
            scores[word if "_" in word else word + "_Latn"] = score
    return scores
