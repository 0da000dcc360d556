// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// goCommand returns a go command that works in dir. Without cgo a test binary depends
// on nothing of the machine that it runs on.
func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	return cmd
}

// goOutput returns what a go command prints, without the end of its line.
func goOutput(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := goCommand(ctx, dir, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}

// atLeisure has a command run with the lowest priority where there is a command for that,
// so that it does not disturb the tests that run already.
func atLeisure(cmd *exec.Cmd) {
	if nice, err := exec.LookPath("nice"); err == nil && cmd.Err == nil {
		cmd.Args = append([]string{"nice", "-n", "19", cmd.Path}, cmd.Args[1:]...)
		cmd.Path = nice
	}
}

// compile builds the test binary of one package.
func compile(ctx context.Context, dir, path, binary string) (output string, failed bool) {
	cmd := goCommand(ctx, dir, "test", "-c", "-o", binary, path)
	atLeisure(cmd)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out) + err.Error() + "\n", true
	}
	// go test -c succeeds without a binary when there are no tests after all.
	if _, err := os.Stat(binary); err != nil {
		return string(out) + err.Error() + "\n", true
	}
	return "", false
}
