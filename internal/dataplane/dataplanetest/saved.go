// SPDX-License-Identifier: Apache-2.0

package dataplanetest

import (
	"bytes"
	"context"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// RunIn runs a command with input in a network namespace, and returns its output.
func RunIn(t testing.TB, ns *lab.Namespace, input, name string, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	err := ns.Do(func() error {
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), name, args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &out
		return cmd.Run()
	})
	if err != nil {
		t.Fatalf("%s %s: %v: %.2000s", name, strings.Join(args, " "), err, out.String())
	}
	return out.String()
}

// ReloadRuleset saves the ruleset with a nft command, deletes it and loads it again, as
// nftables.service does, with more rules loaded in between. It returns the saved text.
func ReloadRuleset(t testing.TB, ns *lab.Namespace, nft, between string) (saved string) {
	t.Helper()
	saved = RunIn(t, ns, "", nft, "list", "ruleset")
	RunIn(t, ns, saved, nft, "--check", "-f", "-") // beside what it was saved from
	RunIn(t, ns, "flush ruleset\n"+between+"\n"+saved, nft, "-f", "-")
	return saved
}

// SameRuleset fails the test unless the ruleset is the saved one.
func SameRuleset(t testing.TB, ns *lab.Namespace, nft, saved string) {
	t.Helper()
	want, got := listed(saved), listed(RunIn(t, ns, "", nft, "list", "ruleset"))
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("the saved and loaded ruleset has %q where it had %q", got[i], want[i])
		}
	}
	if len(got) != len(want) {
		t.Fatalf("the saved and loaded ruleset has %d lines, had %d", len(got), len(want))
	}
}

var changing = regexp.MustCompile(` expires \w+|\s*# count \d+`)

// listed returns the lines of a listing in alphabetical order, each element as a line: the
// order of elements depends on a random number in the kernel.
func listed(ruleset string) []string {
	all := strings.FieldsFunc(changing.ReplaceAllString(ruleset, ""), func(r rune) bool { return r == '\n' || r == ',' })
	for i, line := range all {
		all[i] = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "elements = { "), " }")
	}
	slices.Sort(all)
	return all
}
