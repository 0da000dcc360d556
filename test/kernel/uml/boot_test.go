// SPDX-License-Identifier: Apache-2.0

package uml

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func shell(script string) Command {
	return Command{Path: "/bin/sh", Args: []string{"-c", script}, Env: []string{"COLOUR=green"}}
}

func TestCheckReturnsTheRelease(t *testing.T) {
	ctx, m := machine(t)
	release, err := m.Check(ctx)
	if err != nil {
		t.Fatal(err)
	}
	version, err := exec.CommandContext(ctx, m.Kernel, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimSpace(string(version)); release != want {
		t.Errorf("uname -r on the machine: %q, --version of the kernel: %q", release, want)
	}
}

func TestCommandOnMachine(t *testing.T) {
	ctx, m := machine(t)
	tests := []struct {
		name, script string
		output       string
		exit         int
	}{
		{"exit code zero", "true", "", 0},
		{"exit code", "exit 37", "", 37},
		{"death by signal", "kill -9 $$", "", 137},
		{"both outputs in order", "echo a; echo b >&2; echo c", "a\nb\nc\n", 0},
		{"bytes pass unchanged", `printf 'a\tb\r\n\003\004\377\n'`, "a\tb\r\n\x03\x04\xff\n", 0},
		{"input is empty", "cat; echo end", "end\n", 0},
		{"is root and has a home", `echo $(id -u) $HOME`, "0 /root\n", 0},
		{"environment", "echo $COLOUR", "green\n", 0},
		{"working directory", "pwd", "/\n", 0},
		{"temporary files on tmpfs", "stat -f -c %T $TMPDIR", "tmpfs\n", 0},
		{"network namespaces can be named", "ip netns add a && ip netns list", "a\n", 0},
		{"loopback is up", "cat /sys/class/net/lo/carrier", "1\n", 0},
		{"device nodes", "echo x >/dev/null && head -c 4 /dev/zero | wc -c && head -c 4 /dev/urandom | wc -c && echo fd | cat /dev/fd/0", "4\n4\nfd\n", 0},
		{"pseudo terminals", "stat -f -c %t /dev/pts", "1cd1\n", 0},
		{"control groups", "stat -f -c %T /sys/fs/cgroup", "cgroup2fs\n", 0},
		{"orphans are reaped", "(sh -c 'exit 0' & echo $! >$TMPDIR/pid) ; for i in $(seq 100); do test -e /proc/$(cat $TMPDIR/pid) || { echo gone; break; }; sleep 0.1; done", "gone\n", 0},
		{"background processes do not keep it up", "sleep 1000 & echo done", "done\n", 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			code, err := m.Run(ctx, shell(test.script), &out)
			if err != nil {
				t.Fatal(err)
			}
			if code != test.exit {
				t.Errorf("exit code %d, want %d", code, test.exit)
			}
			if out.String() != test.output {
				t.Errorf("output %q, want %q", out.String(), test.output)
			}
		})
	}
}

func TestFilesAreTheHosts(t *testing.T) {
	ctx, m := machine(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "in"), []byte("from the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := shell("cat in >out")
	c.Dir = dir
	if _, err := m.Run(ctx, c, nil); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != "from the host" {
		t.Errorf("the machine wrote %q", got)
	}
}

// slowWriter is a writer that blocks, so that the machine has to wait for it.
type slowWriter struct{ to io.Writer }

func (w slowWriter) Write(p []byte) (int, error) {
	time.Sleep(5 * time.Millisecond)
	return w.to.Write(p)
}

func TestNoOutputIsLost(t *testing.T) {
	ctx, m := machine(t)
	const lines = 100_000 // more than the pipe and the terminal hold together
	want := sha256.New()
	for i := 1; i <= lines; i++ {
		fmt.Fprintln(want, i)
	}
	got := sha256.New()
	if _, err := m.Run(ctx, shell(fmt.Sprintf("seq 1 %d", lines)), slowWriter{got}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		t.Error("the output is not what the command wrote")
	}
}

// The last bytes, which neither the host nor the pipe to it has taken when the command
// ends, arrive as well.
func TestEndOfOutputIsNotLost(t *testing.T) {
	ctx, m := machine(t)
	const size = 64<<10 + 1400 // a pipe, and some of the terminal's buffer
	var out bytes.Buffer
	stall := time.Second
	stalling := writerFunc(func(p []byte) (int, error) {
		time.Sleep(stall)
		stall = 0
		return out.Write(p)
	})
	if _, err := m.Run(ctx, shell(fmt.Sprintf("echo; sleep 0.2; head -c %d /dev/zero", size)), stalling); err != nil {
		t.Fatal(err)
	}
	if got := out.Len() - 1; got != size {
		t.Errorf("%d bytes arrived of %d", got, size)
	}
}

func TestOutputStreams(t *testing.T) {
	ctx, m := machine(t)
	ctx, cancel := context.WithCancelCause(ctx)
	enough := errors.New("saw the first line")
	// The command never ends by itself: only a line that arrives while it runs ends it.
	seen := writerFunc(func(p []byte) (int, error) {
		if bytes.Contains(p, []byte("first")) {
			cancel(enough)
		}
		return len(p), nil
	})
	_, err := m.Run(ctx, shell("echo first; sleep 1000"), seen)
	if !errors.Is(err, enough) {
		t.Errorf("error %v, want %v", err, enough)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestTimeoutKillsEveryProcess(t *testing.T) {
	ctx, m := machine(t)
	// The kernel's processes carry the job's directory on their command lines.
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithCancel(ctx)
	var during int
	started := writerFunc(func(p []byte) (int, error) {
		during = len(processesOf(t, os.TempDir()))
		cancel()
		return len(p), nil
	})
	_, err := m.Run(ctx, shell("sleep 1000 & sleep 1000 & sleep 1; echo started; sleep 1000"), started)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v, want %v", err, context.Canceled)
	}
	if during < 3 {
		t.Errorf("%d processes while it ran: the test looks for the wrong thing", during)
	}
	// A killed process is gone a moment later.
	deadline := time.Now().Add(10 * time.Second)
	for {
		left := processesOf(t, os.TempDir())
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("processes left: %v", left)
		}
		time.Sleep(10 * time.Millisecond)
	}
	files, err := os.ReadDir(os.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 0 {
		t.Errorf("files left: %v", files)
	}
}

// processesOf returns the ids of the kernels that were started with a job below dir.
func processesOf(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err == nil && bytes.Contains(line, []byte("uml_dir="+dir)) {
			ids = append(ids, filepath.Base(filepath.Dir(file)))
		}
	}
	return ids
}

func TestNoResult(t *testing.T) {
	ctx, m := machine(t)
	script := filepath.Join(t.TempDir(), "kernel")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho it is dark here\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		machine Machine
		command Command
		want    []string
	}{
		{"kernel is missing", Machine{Kernel: "/nonexistent"}, shell("true"), []string{"kernel /nonexistent", "no such file"}},
		{"kernel fails", Machine{Kernel: "/bin/false"}, shell("true"), []string{"kernel /bin/false", "exit status 1", "stayed silent"}},
		{"kernel is no kernel", Machine{Kernel: script}, shell("true"), []string{"without a result", "it is dark here"}},
		{"not enough memory to boot", Machine{Kernel: m.Kernel, Memory: "8M"}, shell("true"), []string{"uml: "}},
		{"command is missing", m, Command{Path: "/nonexistent"}, []string{"command", "/nonexistent", "no such file"}},
		{"working directory is missing", m, Command{Path: "/bin/true", Dir: "/nonexistent"}, []string{"/nonexistent", "no such file"}},
		{"command is relative", m, Command{Path: "true"}, []string{"command", "not an absolute path"}},
		{"command is hidden", m, Command{Path: "/dev/shm/x"}, []string{"command", "below /dev"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			code, err := test.machine.Run(ctx, test.command, nil)
			if err == nil {
				t.Fatalf("no error but exit code %d", code)
			}
			for _, part := range test.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not contain %q", err, part)
				}
			}
		})
	}
}

func TestCheck(t *testing.T) {
	ctx, m := machine(t)
	tests := []struct {
		name, script string // the kernel
		want         string
	}{
		{"panics", "exec " + m.Kernel + ` "$@" init=/nonexistent`, "does not boot: Kernel panic - not syncing: Requested init /nonexistent failed"},
		{"without the patch", "echo 'userspace - ptrace set fp regs failed, errno = 14'; echo Kernel panic - not syncing: x; exit 1", "ptrace set fp regs failed, errno = 14: built without fp-size.patch"},
		{"says nothing", "exit 1", "exit status 1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			script := filepath.Join(t.TempDir(), "kernel")
			if err := os.WriteFile(script, []byte("#!/bin/sh\n"+test.script+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			bad := m
			bad.Kernel = script
			_, err := bad.Check(ctx)
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), script) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q and the kernel's path", err, test.want)
			}
		})
	}
}

// A kernel that aborts while it powers off has delivered the command's result before.
func TestAbortAtPowerOff(t *testing.T) {
	ctx, m := machine(t)
	script := filepath.Join(t.TempDir(), "kernel")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"+m.Kernel+" \"$@\"\nkill -ABRT $$\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	m.Kernel = script
	var out bytes.Buffer
	code, err := m.Run(ctx, shell("echo done; exit 7"), &out)
	if err != nil || code != 7 || out.String() != "done\n" {
		t.Errorf("exit code %d, output %q, error %v", code, &out, err)
	}
}

func TestMachinesAtTheSameTime(t *testing.T) {
	_, m := machine(t)
	for i := range 3 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			var out bytes.Buffer
			code, err := m.Run(ctx, shell(fmt.Sprintf("ip link add x type dummy && sleep 0.5 && exit 1%d", i)), &out)
			if err != nil {
				t.Fatal(err)
			}
			if want := 10 + i; code != want {
				t.Errorf("exit code %d, want %d; output %q", code, want, &out)
			}
		})
	}
}
