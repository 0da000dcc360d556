// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestRunReturnsTheExitStatus(t *testing.T) {
	if err := Run(t.Context(), exec.Command("true")); err != nil {
		t.Errorf("true: %v", err)
	}
	var exit *exec.ExitError
	if err := Run(t.Context(), exec.Command("sh", "-c", "exit 3")); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("exit 3: %v", err)
	}
	if err := Run(t.Context(), exec.Command("/nonexistent")); err == nil {
		t.Error("a program that does not exist: no error")
	}
}

func TestNothingStays(t *testing.T) {
	tests := []struct {
		name, after string
		cancel      bool
	}{
		{"the command ends", "exit 0", false},
		{"the context ends", "sleep 1000", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			read, write := io.Pipe()
			child := make(chan int, 1)
			go func() {
				line, _ := bufio.NewReader(read).ReadString('\n')
				pid, _ := strconv.Atoi(strings.TrimSpace(line))
				child <- pid
				if test.cancel {
					cancel()
				}
				_, _ = io.Copy(io.Discard, read)
			}()
			// The child holds the output open, too: Run would wait for it for long.
			cmd := exec.Command("sh", "-c", "sleep 1000 & echo $!; "+test.after)
			cmd.Stdout = write
			err := Run(ctx, cmd)
			if killed := err != nil; killed != test.cancel {
				t.Errorf("error %v", err)
			}
			pid := <-child
			if pid <= 0 {
				t.Fatal("no child")
			}
			deadline := time.Now().Add(time.Minute)
			for !gone(pid) {
				if time.Now().After(deadline) {
					t.Fatalf("process %d, which the command started, is still there", pid)
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
}

// gone also accepts a zombie, as its new parent may be slow to reap it.
func gone(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err != nil || strings.HasPrefix(strings.TrimSpace(string(out)), "Z")
}
