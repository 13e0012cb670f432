"""The 67 paradigms of BLiMP by phenomenon, and published accuracies.

Warstadt et al. 2020, BLiMP: The Benchmark of Linguistic Minimal Pairs for English, doi 10.1162/tacl_a_00321.
"""

from dataclasses import dataclass
from typing import Final

_BY_PHENOMENON: Final = {
    "anaphor_agreement": "anaphor_gender_agreement anaphor_number_agreement",
    "argument_structure": """
        animate_subject_passive animate_subject_trans causative drop_argument inchoative intransitive passive_1
        passive_2 transitive
    """,
    "binding": """
        principle_A_c_command principle_A_case_1 principle_A_case_2 principle_A_domain_1 principle_A_domain_2
        principle_A_domain_3 principle_A_reconstruction
    """,
    "control_raising": """
        existential_there_object_raising existential_there_subject_raising expletive_it_object_raising
        tough_vs_raising_1 tough_vs_raising_2
    """,
    "determiner_noun_agreement": """
        determiner_noun_agreement_1 determiner_noun_agreement_2 determiner_noun_agreement_irregular_1
        determiner_noun_agreement_irregular_2 determiner_noun_agreement_with_adj_2
        determiner_noun_agreement_with_adj_irregular_1 determiner_noun_agreement_with_adj_irregular_2
        determiner_noun_agreement_with_adjective_1
    """,
    "ellipsis": "ellipsis_n_bar_1 ellipsis_n_bar_2",
    "filler_gap_dependency": """
        wh_questions_object_gap wh_questions_subject_gap wh_questions_subject_gap_long_distance wh_vs_that_no_gap
        wh_vs_that_no_gap_long_distance wh_vs_that_with_gap wh_vs_that_with_gap_long_distance
    """,
    "irregular_forms": "irregular_past_participle_adjectives irregular_past_participle_verbs",
    "island_effects": """
        adjunct_island complex_NP_island coordinate_structure_constraint_complex_left_branch
        coordinate_structure_constraint_object_extraction left_branch_island_echo_question
        left_branch_island_simple_question sentential_subject_island wh_island
    """,
    "npi_licensing": """
        matrix_question_npi_licensor_present npi_present_1 npi_present_2 only_npi_licensor_present only_npi_scope
        sentential_negation_npi_licensor_present sentential_negation_npi_scope
    """,
    "quantifiers": """
        existential_there_quantifiers_1 existential_there_quantifiers_2 superlative_quantifiers_1
        superlative_quantifiers_2
    """,
    "subject_verb_agreement": """
        distractor_agreement_relational_noun distractor_agreement_relative_clause
        irregular_plural_subject_verb_agreement_1 irregular_plural_subject_verb_agreement_2
        regular_plural_subject_verb_agreement_1 regular_plural_subject_verb_agreement_2
    """,
}
"""Names of the paradigms. The data have two of argument structure under a term of their own, s-selection."""
PHENOMENA: Final = tuple(_BY_PHENOMENON)
"""The 12 phenomena of BLiMP."""
PHENOMENON_OF: Final = {uid: name for name, uids in _BY_PHENOMENON.items() for uid in uids.split()}
"""Paradigm → phenomenon, as in the paper, for the 67 paradigms of BLiMP."""


@dataclass(frozen=True)
class PublishedAccuracy:
    """Accuracies of a model in percent on all pairs: of the mean of the paradigms, and of each phenomenon."""

    model: str
    whole: float
    phenomena: tuple[float, ...]


PUBLISHED: Final = (
    PublishedAccuracy("n-gram", 61.2, (47.9, 71.9, 64.4, 68.5, 70.0, 36.9, 60.2, 79.5, 57.2, 45.5, 53.5, 60.3)),
    PublishedAccuracy("LSTM", 69.8, (91.7, 73.2, 73.5, 67.0, 85.4, 67.6, 73.9, 89.1, 46.6, 51.7, 64.5, 80.1)),
    PublishedAccuracy("GPT-2", 83.0, (99.3, 81.8, 80.9, 81.9, 95.8, 89.4, 81.3, 91.9, 72.7, 76.8, 79.0, 86.4)),
)
"""alexwarstadt/blimp, raw_results/summary/models_summary.jsonl: the corrected figures of the authors."""
SOURCE: Final = (
    "n-gram, LSTM and GPT-2: the authors of BLiMP (Warstadt et al. 2020), causal models of other text and budgets, on "
    "all 67,000 pairs"
)
