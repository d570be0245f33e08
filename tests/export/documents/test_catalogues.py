"""Catalogues of gettext: tags, conversions and paths."""

import polib
import pytest
from helpers.document_models import reverse, shout

from keras_transformer.export.documents import DocumentTranslator, translate_file
from keras_transformer.export.documents.catalogues import catalogue

HEAD = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'


def translated(documents, message, flags=""):
    """Returns the entry of one message after its translation."""
    entry = polib.POEntry(msgid=message, msgstr="", flags=flags.split())
    return polib.pofile(catalogue(documents, f"{HEAD}{entry}"))[0]


@pytest.mark.parametrize(
    "message, expected",
    [
        ('Click <a href="%s">this link</a> now.', 'now. <a href="%s">link this</a> Click'),
        ("Save &amp; close <b>all tabs</b>", "<b>tabs all</b> close &amp; Save"),
        ("AT&T <b>one two</b>", "<b>two one</b> AT&T"),
        ("&File a b", "b a &File"),
        ("a < b c", "c b < a"),
        ("one<br>two three", "one<br>three two"),
        ("Usage: run <file> now please", "<file>please now run Usage:"),
        ("<strong>Tip:</strong> a b", "b a <strong>Tip:</strong>"),
        ("Press <kbd>Ctrl c</kbd> a b", "b a Press <kbd>Ctrl c</kbd>"),
        ('<span class="notranslate">A b</span> c d', 'd <span class="notranslate">A b</span> c'),
        ("a {{ x < y }} b", "b a {{ x < y }}"),
        ("&copy; a b", "b &copy; a"),
    ],
)
def test_tags_of_messages_stay_well_nested(message, expected):
    entry = translated(DocumentTranslator(reverse), message)
    assert (entry.msgstr, entry.fuzzy) == (expected, True)


@pytest.mark.parametrize(
    "message, flags, expected",
    [
        ("'%s' is ahead by %d commits", "c-format", "commits by %2$d ahead is '%1$s'"),
        ("%d of %s files (%i%%)", "c-format", "(%3$i%%) files %1$d of %2$s"),
        ("a %s has %ld", "php-format", "has %2$ld a %1$s"),
        ("a %@ has %d", "objc-format", "has %2$d a %1$@"),
        ("a {} has {}", "python-brace-format", "has {1} a {0}"),
        ("a {:>5} has {:d}", "python-brace-format", "has {1:d} a {0:>5}"),
        ("a %s has %s", "python-format", ""),
        ("a %s has %d", "", ""),
        ("a %*d has %s", "c-format", ""),
        ("a %(a)s before %(b)s", "python-format", "before %(b)s a %(a)s"),
        ("a %1$s before %2$d", "c-format", "before %2$d a %1$s"),
        ("a {0} before {1}", "", "before {1} a {0}"),
        ("has %s only", "", "only has %s"),
        ("100%% of %s here", "c-format", "here of %s 100%%"),
        ("50% off a b", "", "b a off 50%"),
    ],
)
def test_conversions_that_change_places_get_numbers(message, flags, expected):
    documents = DocumentTranslator(reverse)
    entry = translated(documents, message, flags)
    assert (entry.msgstr, entry.fuzzy) == (expected, bool(expected))
    assert documents.untranslated == (not expected)


@pytest.mark.parametrize("message", ["%s has %d", "{} of {}", "%d%% of %s", "%.2f MB of %5d"])
def test_conversions_that_stay_in_place_stay_as_they_are(message):
    for flags in ("c-format", "python-format", ""):
        found = translated(DocumentTranslator(shout), f"{message} here", flags).msgstr
        assert found.endswith("HERE") and "$" not in found and "{0" not in found


@pytest.mark.parametrize("text", ["%s a b %d", "{} a b {}", "%5.1f a b %i c"])
def test_conversions_of_other_documents_keep_their_order(text):
    documents = DocumentTranslator(reverse)
    assert documents.text(text) == text and documents.untranslated == 1
    assert documents.html(f"<p>{text}</p>") == f"<p>{text}</p>" and documents.untranslated == 2
    assert documents.markdown(f"{text}\n") == f"{text}\n" and documents.untranslated == 3


def test_the_content_of_a_catalogue_is_no_path(tmp_path):
    secret, sent, answer = (tmp_path / f"{name}.po" for name in ("secret", "sent", "answer"))
    secret.write_text(f'{HEAD}msgid "the password is hat"\nmsgstr ""\n', "utf-8")
    for text in (str(secret), f"{secret}\n", "secret.po", "/etc/hostname", "."):
        sent.write_text(text, "utf-8")
        with pytest.raises(ValueError, match="not a catalogue of gettext") as error:
            translate_file(DocumentTranslator(shout), sent, answer)
        assert "secret" not in str(error.value) and not answer.exists()
