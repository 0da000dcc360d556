// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var code = regexp.MustCompile("`([^`]+)`")

// TestDocs checks that the proofs in docs/services.md exist: each row about a field with an
// effect names a story, or a package with tests of its own.
func TestDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/services.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, line := range lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.Contains(cells[1], "---") || strings.TrimSpace(cells[3]) == "proof" {
			continue // not a row of a table with proofs
		}
		rows++
		proofs := code.FindAllStringSubmatch(cells[3], -1)
		if len(proofs) == 0 && strings.TrimSpace(cells[2]) != "none" {
			t.Errorf("no proof of%s", cells[1])
		}
		for _, p := range proofs {
			_, story := os.Stat(filepath.Join(Dir, p[1]+".txt"))
			_, pkg := os.Stat(filepath.Join("../..", p[1]))
			if story != nil && pkg != nil {
				t.Errorf("the proof of%sis not there: %s", cells[1], p[1])
			}
		}
	}
	if rows < 30 {
		t.Errorf("%d rows found in docs/services.md", rows)
	}
}

// TestNamedTests checks that the tests that docs/tests.md names exist.
func TestNamedTests(t *testing.T) {
	text, err := os.ReadFile("../../docs/tests.md")
	if err != nil {
		t.Fatal(err)
	}
	exist := map[string]bool{}
	err = filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(source), -1) {
			exist[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\bTest[A-Z]\w*`).FindAllString(string(text), -1)
	if len(named) < 80 {
		t.Errorf("%d tests are named", len(named))
	}
	for _, name := range named {
		if !exist[name] {
			t.Errorf("docs/tests.md: there is no %s", name)
		}
	}
}
