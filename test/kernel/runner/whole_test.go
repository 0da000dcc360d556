// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/uml"
)

// scratch is a module with tests that behave in all ways. The runner runs on it, never
// on itself.
var scratch = map[string]string{
	"go.mod": "module example.com/scratch\n\ngo 1.26\n",

	"test/kernel/kerneltest/kerneltest.go": "package kerneltest\n\n" +
		"import (\n\t\"bytes\"\n\t\"os\"\n)\n\n" +
		"func UML() bool {\n\tinfo, _ := os.ReadFile(\"/proc/cpuinfo\")\n\treturn bytes.Contains(info, []byte(\"User Mode Linux\"))\n}\n",

	"pure/pure_test.go": `package pure

import (
	"os"
	"testing"
)

func TestPass(t *testing.T) {}

func TestTable(t *testing.T) {
	for _, name := range []string{"a", "b", "c"} {
		t.Run(name, func(t *testing.T) {})
	}
}

func TestDirectory(t *testing.T) {
	if _, err := os.Stat("pure_test.go"); err != nil {
		t.Error(err)
	}
}
`,
	"fail/fail_test.go": `package fail

import "testing"

func TestFail(t *testing.T) { t.Error("broken pipe organ") }

func TestPass(t *testing.T) {}
`,
	"flaky/flaky_test.go": `package flaky

import (
	"os"
	"testing"
)

func TestFlaky(t *testing.T) {
	t.Run("always", func(t *testing.T) {})
	t.Run("a.b c/once", func(t *testing.T) {
		f, err := os.OpenFile(os.Getenv("FLAKY_DIR")+"/ran", os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return
		}
		f.Close()
		t.Error("stumbled")
	})
}
`,
	"two/two_test.go": `package two

import (
	"os"
	"testing"
)

func TestTwo(t *testing.T) {
	for _, name := range []string{"a", "b"} {
		t.Run(name, func(t *testing.T) {
			f, err := os.OpenFile(os.Getenv("FLAKY_DIR")+"/"+name, os.O_CREATE|os.O_EXCL, 0o600)
			if err == nil {
				f.Close()
				t.Error("stumbled")
			}
		})
	}
}
`,
	"races/races_test.go": `package races

import (
	"os"
	"testing"
)

func TestOnce(t *testing.T) {
	f, err := os.OpenFile(os.Getenv("FLAKY_DIR")+"/ran", os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		f.Close()
		t.Error("WARNING: DATA RACE")
	}
}
`,
	"detected/detected_test.go": `package detected

import "testing"

func TestRace(t *testing.T) {
	n, done := 0, make(chan bool)
	go func() { n++; close(done) }()
	n++
	<-done
}
`,
	"many/many_test.go": `package many

import (
	"os"
	"testing"
)

func TestMany(t *testing.T) {
	for _, name := range []string{"a", "b", "c", "d"} {
		t.Run(name, func(t *testing.T) {
			f, err := os.OpenFile(os.Getenv("FLAKY_DIR")+"/"+name, os.O_CREATE|os.O_EXCL, 0o600)
			if err == nil {
				f.Close()
				t.Error("stumbled")
			}
		})
	}
}
`,
	"args/args_test.go": `package args

import (
	"flag"
	"testing"
)

var seed = flag.Int("seed", 0, "")

func TestSeed(t *testing.T) {
	if *seed != 7 {
		t.Error("no seed")
	}
}
`,
	"panics/panics_test.go": `package panics

import "testing"

func TestFirst(t *testing.T) {}

func TestPanic(t *testing.T) { panic("at the disco") }

func TestNever(t *testing.T) {}
`,
	"hangs/hangs_test.go": `package hangs

import "testing"

func TestHang(t *testing.T) { select {} }
`,
	"exits/exits_test.go": `package exits

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) { m.Run(); os.Exit(3) }

func TestPass(t *testing.T) {}
`,
	"skips/skips_test.go": `package skips

import "testing"

func TestSkip(t *testing.T) { t.Skip("no unicorns") }

func TestPass(t *testing.T) {}
`,
	"syntax/syntax_test.go": "package syntax\n\nfunc TestNothing(t *testing.T) {\n",
	"types/types_test.go":   "package types\n\nvar x int = \"string\"\n",
	"empty/empty_test.go":   "package empty\n",

	"both/both_test.go": `package both

import (
	"os"
	"testing"

	"example.com/scratch/test/kernel/kerneltest"
)

func TestOnHost(t *testing.T) {
	if kerneltest.UML() {
		t.Skip("NOT RUN on kernel uml: no host")
	}
}

func TestOnUML(t *testing.T) {
	if !kerneltest.UML() {
		t.Skip("NOT RUN on kernel host: no uml")
	}
	for _, name := range []string{"x", "y"} {
		t.Run(name, func(t *testing.T) {})
	}
}

func TestOnBoth(t *testing.T) {
	if _, err := os.Stat("both_test.go"); err != nil {
		t.Error(err)
	}
}
`,
	"nowhere/nowhere_test.go": `package nowhere

import (
	"testing"

	"example.com/scratch/test/kernel/kerneltest"
)

func TestNowhere(t *testing.T) {
	if kerneltest.UML() {
		t.Skip("NOT RUN on kernel uml: no moon")
	}
	t.Skip("NOT RUN on kernel host: no sun")
}

func TestPass(t *testing.T) {}
`,
	"umlfails/umlfails_test.go": `package umlfails

import (
	"testing"

	"example.com/scratch/test/kernel/kerneltest"
)

func TestFails(t *testing.T) {
	if kerneltest.UML() {
		t.Error("the machine is on fire")
	}
}
`,
	"umldies/umldies_test.go": `package umldies

import (
	"os"
	"testing"

	"example.com/scratch/test/kernel/kerneltest"
)

func TestDies(t *testing.T) {
	if kerneltest.UML() {
		os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0)
		proc, _ := os.FindProcess(os.Getpid())
		proc.Kill()
		select {}
	}
}
`,
}

func scratchModule(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	files := maps.Clone(scratch)
	files["internal/proxy/both_test.go"] = files["both/both_test.go"] // one of alike
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// lastLine is the format that other programs may rely on.
var lastLine = regexp.MustCompile(`(?:^|\n)\d+ passed, \d+ failed, \d+ skipped\n$`)

func TestWholeRun(t *testing.T) {
	t.Setenv("GOWORK", "off")
	t.Setenv("GOFLAGS", "")
	dir := scratchModule(t)
	script, err := filepath.Abs("../build.sh")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, args string
		code       int
		want       []string // parts of the output, the last line among them
		not        []string // parts that must be absent
	}{
		{"all pass", "-kernel host ./pure", 0, []string{"./pure", "5 passed", "5 passed, 0 failed, 0 skipped"}, []string{"FAIL", "NOT RUN"}},
		{"one fails", "-kernel host ./pure ./fail", 1, []string{"FAILED on host", "./fail TestFail", "broken pipe organ", "\nfailed: ./fail TestFail\n6 passed, 1 failed, 0 skipped"}, nil},
		{"one fails, said at once", "-kernel host ./fail", 1, []string{"1 passed, 1 failed, 0 skipped (", ")\n      TestFail\n", "broken pipe organ\n        --- FAIL: TestFail", "1 passed, 1 failed, 0 skipped"}, nil},
		{"fails twice", "-kernel host ./fail", 1, []string{"Running 1 test again, alone", "failed: ./fail TestFail\n1 passed, 1 failed, 0 skipped"}, []string{"FLAKY", "flaky:"}},
		{"passes alone", "-kernel host ./flaky", 0, []string{"Running 1 test again, alone", "FLAKY: 1 test", "./flaky TestFlaky/a.b_c/once on host", "stumbled", "\nflaky: ./flaky TestFlaky/a.b_c/once\n2 passed, 0 failed, 0 skipped"}, []string{"failed: "}},
		{"two pass alone", "-kernel host ./two", 0, []string{"Running 2 tests again, alone", "FLAKY: 2 tests", "2 passed, 0 failed, 0 skipped"}, nil},
		{"passes alone, others fail", "-kernel host ./flaky ./fail", 1, []string{"FLAKY: 1 test", "flaky: ./flaky TestFlaky/a.b_c/once\nfailed: ./fail TestFail\n3 passed, 1 failed, 0 skipped"}, nil},
		{"fails with count", "-kernel host -count 2 ./flaky", 1, []string{"1 passed, 1 failed, 0 skipped"}, []string{"again", "FLAKY"}},
		{"too many to run again", "-kernel host ./many", 1, []string{"0 passed, 4 failed, 0 skipped"}, []string{"again", "FLAKY"}},
		{"without the race detector", "-kernel host -race ./pure/...,./detected/other ./detected", 0, []string{"1 passed, 0 failed, 0 skipped"}, nil},
		{"with the race detector", "-kernel host -race ./pure,./detected/... ./detected", 1, []string{"DATA RACE", "0 passed, 1 failed, 0 skipped"}, nil},
		{"a data race is certain", "-kernel host ./races", 1, []string{"0 passed, 1 failed, 0 skipped"}, []string{"again", "FLAKY"}},
		{"arguments for the tests", "-kernel host ./args -- -seed 7", 0, []string{"1 passed, 0 failed, 0 skipped"}, nil},
		{"run selects", "-kernel host -run ^TestPass$ ./pure ./fail", 0, []string{"2 passed, 0 failed, 0 skipped"}, nil},
		{"run selects subtests", "-kernel host -run TestTable/b ./pure", 0, []string{"1 passed, 0 failed, 0 skipped"}, nil},
		{"run selects nothing", "-kernel host -run TestAbsent ./pure", 1, []string{"NO TESTS WERE RUN", "0 passed, 0 failed, 0 skipped"}, nil},
		{"package without tests in its files", "-kernel host ./empty", 1, []string{"NO TESTS WERE RUN", "0 passed, 0 failed, 0 skipped"}, nil},
		{"count runs twice, counts once", "-kernel host -count 2 -v ./pure", 0, []string{"[host] --- PASS: TestPass", "5 passed, 0 failed, 0 skipped"}, nil},
		{"panic", "-kernel host ./panics", 1, []string{"TestPanic", "at the disco", "(package)", "1 passed, 2 failed, 0 skipped"}, nil},
		{"hang", "-kernel host -timeout 1s ./hangs", 1, []string{"test timed out after 1s", "./hangs TestHang", "0 passed, 2 failed, 0 skipped"}, nil},
		{"binary fails though tests pass", "-kernel host ./exits", 1, []string{"./exits (package)", "exit status 3", "1 passed, 1 failed, 0 skipped"}, nil},
		{"skipped everywhere", "-kernel host ./skips", 1, []string{"NOT RUN ON ANY KERNEL: 1 test. They count as failed.", "./skips TestSkip", "no unicorns", "\nnot run: ./skips TestSkip\n1 passed, 1 failed, 0 skipped"}, nil},
		{"skipped everywhere, not strict", "-kernel host -strict=false ./skips", 0, []string{"NOT RUN ON ANY KERNEL", "1 passed, 0 failed, 1 skipped"}, nil},
		{"syntax error", "-kernel host ./pure ./syntax", 1, []string{"./syntax (package)", "do not build", "syntax_test.go:3", "5 passed, 1 failed, 0 skipped"}, nil},
		{"type error", "-kernel host ./pure ./types", 1, []string{"./types (package)", "do not build", "types_test.go:3", "5 passed, 1 failed, 0 skipped"}, nil},
		{"no such package", "-kernel host ./absent", 2, nil, []string{"passed"}},
		{"named kernel is missing", "./both", 2, []string{"kernel 6.12: ", "SLIPSTREAM_TESTKERNEL: '/nonexistent' is not an executable file"}, []string{"passed"}},
		{"no kernels to build", "./both", 1, []string{"NO KERNEL 6.12", "NO KERNEL 6.1:", "NOT RUN ON ANY KERNEL: 1 test", "./both TestOnUML", "no uml", "2 passed, 1 failed, 0 skipped"}, nil},
		{"no kernel to build, the only one", "-kernel 6.1 ./both", 2, []string{"kernel 6.1: not available"}, []string{"passed"}},
		{"no kernels to build, in CI", "./both", 2, []string{"kernel 6.12: not available"}, []string{"passed"}},
		{"no kernels to build, host asked for", "-kernel host ./both", 1, []string{"NOT RUN ON ANY KERNEL: 1 test", "./both TestOnUML", "no uml", "2 passed, 1 failed, 0 skipped"}, nil},
		{"no kernels to build, no test for one", "./pure", 0, []string{"5 passed, 0 failed, 0 skipped"}, nil},
		{"panicking kernel", "./both", 2, []string{"does not boot: Kernel panic - not syncing: on purpose"}, []string{"passed"}},

		{"uml: each ran somewhere", "./both ./pure", 0, []string{"Kernels: host ", ", uml 6.12.", ", uml 6.1.", "Skipped on some kernel", "no host", "no uml", "9 passed, 0 failed, 0 skipped"}, []string{"NOT RUN ON", "FAIL"}},
		{"uml: passed on the host", "-v ./both", 0, []string{"[6.12] --- PASS: TestOnUML ", "[6.1] --- PASS: TestOnUML ", "[6.1] --- PASS: TestOnBoth", "4 passed, 0 failed, 0 skipped"}, []string{"[6.12] --- PASS: TestOnBoth"}},
		{"uml: alike on all kernels", "-v ./internal/proxy", 0, []string{"[6.12] --- PASS: TestOnUML ", "[6.1] --- PASS: TestOnUML ", "4 passed, 0 failed, 0 skipped"}, []string{"[6.1] --- PASS: TestOnBoth"}},
		{"uml: alike, one kernel", "-kernel 6.1 -strict=false -v ./internal/proxy", 0, []string{"[6.1] --- PASS: TestOnUML ", "[6.1] --- PASS: TestOnBoth", "3 passed, 0 failed, 1 skipped"}, nil},
		{"uml: alone", "-kernel uml ./both ./pure", 1, []string{"TestOnHost", "no host", "3 passed, 1 failed, 0 skipped"}, []string{"./pure"}},
		{"uml: one of them", "-kernel 6.1 ./both ./pure", 1, []string{"Kernels: uml 6.1.", "3 passed, 1 failed, 0 skipped"}, []string{"6.12."}},
		{"uml: skipped everywhere", "./nowhere", 1, []string{"NOT RUN ON ANY KERNEL", "no sun", "no moon", "1 passed, 1 failed, 0 skipped"}, nil},
		{"uml: failed there", "./umlfails", 1, []string{"FAILED on uml", "the machine is on fire", "0 passed, 1 failed, 0 skipped"}, nil},
		{"uml: killed there", "-kernel uml ./umldies", 1, []string{"FAILED on uml 6.12", "FAILED on uml 6.1.", "./umldies (package)", "0 passed, 3 failed, 0 skipped"}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if strings.HasPrefix(test.name, "uml:") {
				for _, version := range uml.Versions {
					if _, err := uml.Find(t.Context(), script, version); errors.Is(err, uml.ErrNoKernel) {
						t.Skipf("NOT RUN: %v", err)
					}
				}
			}
			kernelScript := script
			write := func(name, text string) string {
				path := filepath.Join(t.TempDir(), name)
				if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
					t.Fatal(err)
				}
				return path
			}
			switch {
			case strings.HasPrefix(test.name, "no kernel"):
				kernelScript = write("build.sh", "exit 3")
			case test.name == "named kernel is missing":
				t.Setenv("SLIPSTREAM_TESTKERNEL", "/nonexistent")
			case test.name == "panicking kernel":
				kernelScript = write("build.sh", "echo "+write("kernel", "echo Kernel panic - not syncing: on purpose\nexit 1"))
			}
			opts, err := parseFlags(strings.Fields(test.args), strings.HasSuffix(test.name, "in CI"), os.Stderr)
			if err != nil {
				t.Fatal(err)
			}
			opts.dir, opts.script = dir, kernelScript
			t.Setenv("FLAKY_DIR", t.TempDir())
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			var out strings.Builder
			code, err := run(ctx, opts, &out, &out)
			if err != nil {
				fmt.Fprintln(&out, err)
			}
			if code != test.code {
				t.Errorf("exit code %d, want %d; error %v", code, test.code, err)
			}
			if (err != nil) != (code == exitUsage) {
				t.Errorf("error %v with exit code %d", err, code)
			}
			text := out.String()
			for _, part := range test.want {
				if !strings.Contains(text, part) {
					t.Errorf("the output lacks %q", part)
				}
			}
			if again := strings.Count(text, "[host] --- PASS: TestPass"); again > 0 && again != opts.count {
				t.Errorf("TestPass ran %d times, want %d", again, opts.count)
			}
			for _, part := range test.not {
				if strings.Contains(text, part) {
					t.Errorf("the output has %q", part)
				}
			}
			if code != exitUsage {
				if last := test.want[len(test.want)-1] + "\n"; !strings.HasSuffix(text, "\n"+last) || !lastLine.MatchString(text) {
					t.Errorf("the last line is not %q", last)
				}
			}
			if t.Failed() {
				t.Logf("output:\n%s", text)
			}
		})
	}
}

// Whoever interrupts the runner gets a failure, at once, and no test binary stays.
func TestInterrupt(t *testing.T) {
	t.Setenv("GOWORK", "off")
	dir := scratchModule(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	opts, err := parseFlags([]string{"-kernel", "host", "-v", "./hangs"}, false, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	opts.dir = dir
	var out strings.Builder
	code, err := run(ctx, opts, cancelOn{&out, "=== RUN   TestHang", cancel}, &out)
	if code != exitFailed || err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("exit code %d, error %v", code, err)
	}
	if !strings.Contains(out.String(), "killed: context canceled") {
		t.Errorf("output:\n%s", &out)
	}
}

// cancelOn calls a function when some text is written.
type cancelOn struct {
	to   *strings.Builder
	text string
	call func()
}

func (c cancelOn) Write(p []byte) (int, error) {
	if strings.Contains(string(p), c.text) {
		c.call()
	}
	return c.to.Write(p)
}
