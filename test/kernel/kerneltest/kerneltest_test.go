// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Every probe comes to an answer, twice the same, and an answer of no says why.
func TestProbesAreDefinite(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range Features() {
		t.Run(f.String(), func(t *testing.T) {
			if f.String() == "" || seen[f.String()] {
				t.Fatalf("name %q is empty or taken", f)
			}
			seen[f.String()] = true
			err := f.Probe()
			if again := f.Probe(); again != err {
				t.Errorf("probed again: %v, before: %v", again, err)
			}
			if err == nil {
				t.Logf("kernel %s has %s", Kernel(), f)
				return
			}
			t.Logf("kernel %s has no %s: %v", Kernel(), f, err)
			if text := err.Error(); text == "" || strings.Contains(text, "\n") {
				t.Errorf("reason %q is not one line", text)
			}
		})
	}
}

// A probe may leave nothing behind in the namespaces of the process.
func TestProbesLeaveNoTrace(t *testing.T) {
	Require(t, NetNS)
	before := threadNamespaces(t)
	if err := inNewNetNS(func() error {
		home, own := before["main"], namespaceOf(t, "/proc/thread-self/ns/net")
		if own == home {
			t.Errorf("the function ran in the process's own namespace %d", home)
		}
		return errProbe
	}); err != errProbe {
		t.Errorf("error %v, want the function's own", err)
	}
	for _, f := range Features() {
		_ = f.Probe()
	}
	for thread, namespace := range threadNamespaces(t) {
		if namespace != before["main"] {
			t.Errorf("thread %s is in namespace %d, the process in %d", thread, namespace, before["main"])
		}
	}
}

var errProbe = errors.New("probe")

// threadNamespaces returns the network namespace of each thread by its id, and that of
// the process as "main".
func threadNamespaces(t *testing.T) map[string]uint64 {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]uint64{"main": namespaceOf(t, "/proc/self/ns/net")}
	for _, thread := range threads {
		out[thread.Name()] = namespaceOf(t, "/proc/self/task/"+thread.Name()+"/ns/net")
	}
	return out
}

func namespaceOf(t *testing.T, path string) uint64 {
	t.Helper()
	var info unix.Stat_t
	if err := unix.Stat(path, &info); err != nil {
		if errors.Is(err, unix.ENOENT) { // a thread that has ended
			return namespaceOf(t, "/proc/self/ns/net")
		}
		t.Fatal(err)
	}
	return info.Ino
}

// A kernel that refuses part of a transaction must lead to a no, not to a yes.
func TestProbeTableReportsRefusal(t *testing.T) {
	Require(t, NFTables)
	err := withProbeTable(func(conn *nftables.Conn, table *nftables.Table) {
		conn.AddChain(&nftables.Chain{Table: table, Name: "c", Type: "nonsense",
			Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter})
	})
	if err == nil {
		t.Error("no error for a chain of a type that does not exist")
	}
}

func TestRequireSkips(t *testing.T) {
	there := Feature{name: "there", probe: func() error { return nil }}
	absent := Feature{name: "absent", probe: func() error { return errors.New("because") }}
	tests := []struct {
		name     string
		features []Feature
		skipped  bool
	}{
		{"none", nil, false},
		{"there", []Feature{there}, false},
		{"absent", []Feature{absent}, true},
		{"one of two", []Feature{there, absent}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fake := &fakeTB{TB: t}
			func() {
				defer func() { _ = recover() }()
				Require(fake, test.features...)
			}()
			if fake.skipped != test.skipped {
				t.Fatalf("skipped %v, want %v", fake.skipped, test.skipped)
			}
			if want := "NOT RUN on kernel " + Kernel() + ": no absent: because"; test.skipped && fake.message != want {
				t.Errorf("message %q, want %q", fake.message, want)
			}
		})
	}
}

// fakeTB notes a Skip, which ends the caller by a panic.
type fakeTB struct {
	testing.TB
	skipped bool
	message string
}

func (f *fakeTB) Helper() {}

func (f *fakeTB) Skip(args ...any) {
	f.skipped, f.message = true, args[0].(string)
	panic("skipped")
}

func TestNeedsComeFirst(t *testing.T) {
	saved := features
	defer func() { features = saved }()
	base := Define("base", func() error { return errors.New("gone") })
	probed := 0
	top := Define("top", func() error { probed++; return nil }, base)
	err := top.Probe()
	if err == nil || err.Error() != "no base: gone" {
		t.Errorf("error %v", err)
	}
	if probed != 0 {
		t.Error("probed although what it needs is missing")
	}
}

func TestProbeIsCached(t *testing.T) {
	saved := features
	defer func() { features = saved }()
	probed := 0
	f := Define("counted", func() error { probed++; return errProbe })
	for range 3 {
		if err := f.Probe(); err != errProbe {
			t.Errorf("error %v", err)
		}
	}
	if probed != 1 {
		t.Errorf("probed %d times", probed)
	}
}

func TestOneLine(t *testing.T) {
	tests := []struct {
		in   error
		want string
	}{
		{errProbe, "probe"},
		{errors.Join(errProbe, errors.New("more")), "probe"},
	}
	for _, test := range tests {
		if got := oneLine(test.in); got.Error() != test.want {
			t.Errorf("%q: got %q, want %q", test.in, got, test.want)
		}
	}
	if got := oneLine(nil); got != nil {
		t.Errorf("nil: got %v", got)
	}
}

func TestKernel(t *testing.T) {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	name, suffix, _ := strings.Cut(Kernel(), " ")
	if want := strings.TrimSpace(string(release)); name != want {
		t.Errorf("kernel %q, want %q", name, want)
	}
	if suffix != "" && suffix != "uml" {
		t.Errorf("suffix %q", suffix)
	}
}

func TestIsUML(t *testing.T) {
	tests := []struct {
		cpuinfo string
		uml     bool
	}{
		{"processor\t: 0\nvendor_id\t: User Mode Linux\nmodel name\t: UML\n", true},
		{"processor\t: 0\nvendor_id\t: GenuineIntel\n", false},
		{"", false},
	}
	for _, test := range tests {
		if got := isUML([]byte(test.cpuinfo)); got != test.uml {
			t.Errorf("%q: %v", test.cpuinfo, got)
		}
	}
}

// The commands of a probe answer with a reason when there is no such command.
func TestCommandReasons(t *testing.T) {
	tests := []struct{ line, want string }{
		{"slipstream-no-such-command -x", "slipstream-no-such-command is not installed"},
		{"ls /nonexistent/directory", "exit status 2"},
	}
	for _, test := range tests {
		err := runCommand(test.line)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q in it", test.line, err, test.want)
		}
	}
	if err := runCommand("true"); err != nil {
		t.Errorf("true: %v", err)
	}
}
