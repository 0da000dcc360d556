// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// alive says whether the process runs; a zombie does not.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

func TestProcess(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)

	t.Run("is in the namespace", func(t *testing.T) {
		p, err := b.web1.Start(exec.Command("sleep", "300"))
		if err != nil {
			t.Fatal(err)
		}
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", p.PID()))
		if want := namespaceOf(&b.web1.Machine); err != nil || ns != want {
			t.Errorf("namespace %s, %v, want %s", ns, err, want)
		}
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
		if err := p.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Errorf("wait: %v", err)
		}
		if err := p.Kill(); err != nil {
			t.Errorf("kill after the end: %v", err)
		}
		if err := p.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("signal after the end: %v", err)
		}
	})
	t.Run("output and signal", func(t *testing.T) {
		var out lockedBuffer
		cmd := exec.Command("sh", "-c", `trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done`)
		cmd.Stdout = &out
		p, err := b.web1.Start(cmd)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "ready", func() bool { return out.String() == "ready\n" })
		if err := p.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if exit := (*exec.ExitError)(nil); !errors.As(p.Wait(), &exit) || exit.ExitCode() != 3 {
			t.Errorf("wait: %v, want exit status 3", p.Wait())
		}
		if out.String() != "ready\nbye\n" {
			t.Errorf("output %q", out.String())
		}
	})
	t.Run("context", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := b.web1.Run(ctx, "sleep", "300"); err == nil {
			t.Error("no error")
		}
	})
	t.Run("run", func(t *testing.T) {
		out, err := b.web1.Run(t.Context(), "sh", "-c", "echo out; echo err >&2; exit 4")
		if string(out) != "out\n" || err == nil || !strings.Contains(err.Error(), "err") {
			t.Errorf("output %q, error %v", out, err)
		}
	})
	t.Run("missing program", func(t *testing.T) {
		if _, err := b.web1.Start(exec.Command("/nonexistent")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("error %v, want %v", err, os.ErrNotExist)
		}
	})
	t.Run("group ends with the pod", func(t *testing.T) {
		p := pod(t, b.n1, "short", "10.244.1.50")
		var out lockedBuffer
		cmd := exec.Command("sh", "-c", "sleep 300 & echo $!; wait")
		cmd.Stdout = &out
		leader, err := p.Start(cmd)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "a process id", func() bool { return strings.HasSuffix(out.String(), "\n") })
		child, err := strconv.Atoi(strings.TrimSpace(out.String()))
		if err != nil {
			t.Fatal(err)
		}
		if !alive(child) {
			t.Fatal("the leader's child does not run")
		}
		if err := p.Delete(); err != nil {
			t.Fatal(err)
		}
		if alive(leader.PID()) {
			t.Error("the leader runs after Delete")
		}
		eventually(t, "the leader's child ends", func() bool { return !alive(child) })
	})
}

// lockedBuffer may be read while a process writes to it.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
