// SPDX-License-Identifier: Apache-2.0

package plain

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"
)

// hostile are texts that do something to a terminal or a log, and what is shown instead.
var hostile = map[string]string{
	"\x1b[2J\x1b[1;1H":             `\u001b[2J\u001b[1;1H`,
	"\x1b]0;title\a":               `\u001b]0;title\u0007`,
	"a\u009b31m":                   `a\u009b31m`, // CSI as one character (C1)
	"a\x7fb":                       `a\u007fb`,
	"a\x00b":                       `a\u0000b`,
	"\u202egnp.exe":                `\u202egnp.exe`, // right-to-left override
	"\u2066x\u2069":                `\u2066x\u2069`, // isolates
	"a\u200bb\ufeffc":              `a\u200bb\ufeffc`,
	"\U000e0041":                   `\udb40\udc41`, // a tag character
	"\x9b31m\xff":                  `\ufffd31m\ufffd`,
	"Zürich 東京 \U0001f600 e\u0301": "Zürich 東京 \U0001f600 e\u0301",
	"\ufffd":                       "\ufffd",
}

func TestLine(t *testing.T) {
	for text, want := range hostile {
		if got := Line(text, 100); got != want {
			t.Errorf("%q is shown as %q, not %q", text, got, want)
		}
	}
	for _, br := range []string{"\n", "\r\n", "\v", "\f", "\u0085", "\u2028", "\u2029", "\t"} {
		if got, want := Line("a"+br+"PROBLEM b", 100), "a PROBLEM b"; got != want {
			t.Errorf("with %q it is %q", br, got)
		}
	}
	for _, text := range []string{strings.Repeat("x", 1<<18), strings.Repeat("é", 1<<17), strings.Repeat("\x1b", 1<<18), "a" + strings.Repeat("é", 100)} {
		if got := Line(text, 100); len(got) > 6*100+3 || !strings.HasSuffix(got, "...") || strings.ContainsRune(got, unicode.ReplacementChar) {
			t.Errorf("%q...: %d bytes, %q", text[:10], len(got), got)
		}
	}
	if got := Line("short", 5); got != "short" {
		t.Error(got)
	}
}

// TestWriter writes texts byte by byte: a character counts when it is complete.
func TestWriter(t *testing.T) {
	for text, want := range hostile {
		var b bytes.Buffer
		w := Writer{To: &b}
		for i := range len(text) {
			if n, err := w.Write([]byte(text[i : i+1])); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		w.Write([]byte("\t|\n"))
		if got := b.String(); got != want+"\t|\n" {
			t.Errorf("%q is written as %q", text, got)
		}
	}
}

// TestWriterJSON writes JSON, which has to stay the same.
func TestWriterJSON(t *testing.T) {
	var all []string
	for text := range hostile {
		all = append(all, strings.ToValidUTF8(text, "?"))
	}
	var b bytes.Buffer
	if err := json.NewEncoder(&Writer{To: &b}).Encode(all); err != nil {
		t.Fatal(err)
	}
	for _, r := range strings.TrimSpace(b.String()) {
		if !unicode.IsPrint(r) {
			t.Errorf("%U is in %q", r, b.String())
		}
	}
	var got []string
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if got[i] != all[i] {
			t.Errorf("%q became %q", all[i], got[i])
		}
	}
}
