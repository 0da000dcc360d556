// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/fatih/color"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// binaryVariable names a slipstream binary that has been built already; on the
// User Mode Linux kernel building one is slow.
const binaryVariable = "SLIPSTREAM_BIN"

// slipstreamBinary returns the path of a slipstream binary.
func slipstreamBinary(t *testing.T) string {
	t.Helper()
	if path := os.Getenv(binaryVariable); path != "" {
		return path
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("no go command to build slipstream with, and %s is not set", binaryVariable)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	path := filepath.Join(t.TempDir(), "slipstream")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", path, "../../cmd/slipstream")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

// play runs the demo, and fails the test if it leaves files or processes behind.
func play(ctx context.Context, t *testing.T, binary string, out io.Writer) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 8*time.Minute)
	defer cancel()
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	color.NoColor = true // the test's own output may be a terminal
	err := run(ctx, binary, out)
	files, e := os.ReadDir(tmp)
	if e != nil {
		t.Fatal(e)
	}
	for _, f := range files {
		t.Errorf("left behind: %s", f.Name())
	}
	if pid, e := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); !errors.Is(e, syscall.ECHILD) {
		t.Errorf("child processes are left (wait4: %d, %v)", pid, e)
	}
	return err
}

func TestDemo(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	var out bytes.Buffer
	if err := play(t.Context(), t, slipstreamBinary(t), &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	t.Logf("\n%s", &out)
	for _, want := range []string{"client-1 -> 10.96.0.10:80/TCP", "kill -9", "was refused at once", "claims hold."} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in the output", want)
		}
	}
	for l := range strings.Lines(out.String()) {
		l = strings.TrimSuffix(l, "\n")
		if n := utf8.RuneCountInString(l); n > width {
			t.Errorf("%d columns: %s", n, l)
		}
		if strings.ContainsAny(l, "\x1b\r") || strings.HasSuffix(l, " ") {
			t.Errorf("not plain: %q", l)
		}
	}
}

// The claims of the demo can fail: here cleanup does nothing.
func TestDemoSeesWhatIsNotSo(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	script := filepath.Join(t.TempDir(), "slipstream")
	text := "#!/bin/sh\n[ \"$1\" = cleanup ] && exit 0\nexec " + slipstreamBinary(t) + " \"$@\"\n"
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := play(t.Context(), t, script, &out)
	if err == nil || err.Error() != "2 claims did not hold" {
		t.Fatalf("error %v\n%s", err, &out)
	}
	for _, node := range []string{"node-1", "node-2"} {
		want := "✗ nftables of " + node + ": [ip slipstream ip6 slipstream] before, [ip slipstream ip6 slipstream] after"
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in the output:\n%s", want, &out)
		}
	}
}

// interrupter ends a context when it sees a text.
type interrupter struct {
	bytes.Buffer
	at     string
	cancel context.CancelFunc
}

func (i *interrupter) Write(p []byte) (int, error) {
	n, err := i.Buffer.Write(p)
	if strings.Contains(i.String(), i.at) {
		i.cancel()
	}
	return n, err
}

func TestInterrupt(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	ctx, cancel := context.WithCancel(t.Context())
	out := &interrupter{at: "steps/2-web-terminating", cancel: cancel}
	if err := play(ctx, t, slipstreamBinary(t), out); err == nil || err.Error() != "interrupted" {
		t.Errorf("error %v\n%s", err, out)
	}
	text := out.String()
	if !strings.Contains(text, out.at) || strings.Contains(text, "✗") {
		t.Errorf("output:\n%s", text)
	}
}

func TestNoBinary(t *testing.T) {
	err := run(t.Context(), "no/such/file", io.Discard)
	if err == nil || !strings.Contains(err.Error(), "-slipstream: no/such/file does not exist") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
}
