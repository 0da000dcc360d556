// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// node is a network namespace that kube-proxy may have been in.
type node struct {
	testing.TB
	ns      *lab.Namespace
	removed []string
	failed  []string
}

func newNode(t testing.TB) *node {
	t.Helper()
	ns, err := lab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Close(); err != nil {
			t.Error(err)
		}
	})
	return &node{TB: t, ns: ns}
}

// run runs a command in the namespace.
func (n *node) run(stdin, name string, args ...string) string {
	n.Helper()
	out, err := n.try(stdin, name, args...)
	if err != nil {
		n.Fatal(err)
	}
	return out
}

func (n *node) check(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

func (n *node) try(stdin, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(n.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	p, err := n.ns.Start(cmd)
	if err == nil {
		err = p.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

// options are those of a take-over in this namespace, which records what it reports.
func (n *node) options() Options {
	n.removed, n.failed = nil, nil
	return Options{
		Removed: func(what string) { n.removed = append(n.removed, what) },
		Failed:  func(err error) { n.failed = append(n.failed, err.Error()) },
	}
}

// takeOver removes kube-proxy's objects, and fails the test on an error.
func (n *node) takeOver() {
	n.Helper()
	err := n.ns.Do(func() error { return Remove(n.Context(), n.options()) })
	if err != nil {
		n.Errorf("take-over: %v", err)
	}
}

// variant is one of the two ways that iptables has into the kernel.
type variant struct {
	name    string
	feature kerneltest.Feature
}

var variants = []variant{{"legacy", kerneltest.IPTablesLegacy}, {"nft", kerneltest.IPTablesNFT}}

// eachVariant runs a test for each variant of iptables and each family.
func eachVariant(t *testing.T, test func(t *testing.T, x *iptables)) {
	for _, v := range variants {
		for _, command := range []string{"iptables-", "ip6tables-"} {
			t.Run(command+v.name, func(t *testing.T) {
				kerneltest.Require(t, v.feature)
				test(t, &iptables{newNode(t), command + v.name})
			})
		}
	}
}

// iptables is one of four commands on a node.
type iptables struct {
	*node
	command string
}

func (x *iptables) v6() bool { return strings.HasPrefix(x.command, "ip6") }

// restore adds rules, with counters.
func (x *iptables) restore(rules string) {
	x.Helper()
	x.run(rules, x.command+"-restore", "--noflush", "--counters", "-w", "10")
}

// restoreRecorded adds the rules that kube-proxy writes in a mode.
func (x *iptables) restoreRecorded(mode string) {
	x.Helper()
	if x.v6() {
		x.restore(testdata(x, mode+".v6"))
	} else {
		x.restore(testdata(x, mode+".v4"))
	}
}

// restoreOthers adds rules of other programs.
func (x *iptables) restoreOthers() {
	x.Helper()
	rules := testdata(x, "others.iptables")
	if x.v6() {
		rules = address.ReplaceAllString(rules, "fd00:$1:$2::")
		rules = strings.NewReplacer("::/8", "::/32", "::/16", "::/48", "::/24", "::/56", "::/32", "::/128",
			"icmp-port-unreachable", "icmp6-port-unreachable", "fd00:10:244:::80", "[fd00:10:244::]:80").Replace(rules)
	}
	x.restore(rules)
}

var address = regexp.MustCompile(`\b(\d+)\.(\d+)\.\d+\.\d+`)

// save is everything, with counters, without remarks.
func (x *iptables) save() (all string) {
	x.Helper()
	for _, table := range []string{"nat", "filter", "mangle"} {
		all += withoutRemarks(x.run("", x.command+"-save", "--counters", "--table", table))
	}
	return all
}

func withoutRemarks(text string) string {
	var kept []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

func testdata(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// compare fails the test unless two listings are equal.
func compare(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s has changed\n--- before:\n%s--- now:\n%s", what, want, got)
	}
}
