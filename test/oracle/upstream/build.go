// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/test/oracle/program"
	"golang.org/x/sys/unix"
)

// kubernetes is the Go module that the programs are built from.
const kubernetes = "k8s.io/kubernetes"

// Programs are the names that [Binary] knows.
var Programs = []string{"kube-proxy", "kube-apiserver"}

// Log is told, in one line, what takes long. It may be nil.
type Log func(format string, args ...any)

func (l Log) printf(format string, args ...any) {
	if l != nil {
		l(format, args...)
	}
}

// Binary returns the path of one of Kubernetes' programs. It is built when it is not in
// the user's cache directory (slipstream/oracle) yet, which takes minutes. Several
// processes may ask at the same time: one builds, the others wait.
func Binary(ctx context.Context, name string, log Log) (string, error) {
	tools, err := toolsDir(ctx)
	if err != nil {
		return "", err
	}
	cache, version, err := cacheOf(ctx, tools)
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, name)
	if isProgram(path) {
		return path, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return "", fmt.Errorf("waiting for another build of %s: %w", name, err)
	}
	defer unlock()
	if isProgram(path) { // built while we waited
		return path, nil
	}
	log.printf("building %s %s, once, into %s", name, version, cache)
	begin := time.Now()
	if err := build(ctx, tools, name, version, path, log); err != nil {
		return "", fmt.Errorf("build %s %s: %w", name, version, err)
	}
	log.printf("built %s in %v", name, time.Since(begin).Round(time.Second))
	return path, nil
}

// cacheOf is where programs are kept: in slipstream/oracle in the user's cache directory,
// a folder for each content of the module tools; and Kubernetes' version.
func cacheOf(ctx context.Context, tools string) (dir, version string, err error) {
	user, err := os.UserCacheDir()
	if err != nil {
		return "", "", err
	}
	version, err = Go(ctx, tools, "list", "-m", "-f", "{{.Version}}", kubernetes)
	if err != nil {
		return "", "", err
	}
	hash := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(tools, name))
		if err != nil {
			return "", "", err
		}
		hash.Write(b)
	}
	key := version + "-" + hex.EncodeToString(hash.Sum(nil))[:12]
	return filepath.Join(user, "slipstream", "oracle", key), version, nil
}

// toolsDir is the folder of the module that has Kubernetes among its requirements,
// found from anywhere in this module or in one that requires it.
func toolsDir(ctx context.Context) (string, error) {
	oracle, err := Go(ctx, "", "list", "-m", "-f", "{{.Dir}}", "github.com/slipstream-proxy/slipstream/test/oracle")
	if err != nil {
		return "", fmt.Errorf("not in the module test/oracle, nor in one that requires it: %w", err)
	}
	return filepath.Join(oracle, "tools"), nil
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// build links the program beside its final place and then moves it there, so that
// nobody ever finds half of one.
func build(ctx context.Context, tools, name, version, path string, log Log) error {
	part := path + ".part"
	defer os.Remove(part)
	flags := "-s -w -X k8s.io/component-base/version.gitVersion=" + version
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-trimpath", "-ldflags", flags, "-o", part, kubernetes+"/cmd/"+name)
	cmd.Dir = tools
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	begin := time.Now()
	done := make(chan error, 1)
	go func() { done <- cmd.Run() }()
	tick := time.NewTicker(30 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			log.printf("still building %s (%v)", name, time.Since(begin).Round(time.Second))
		case err := <-done:
			if err != nil {
				return fmt.Errorf("%w\n%s", err, program.Tail(out.Bytes(), 20))
			}
			return os.Rename(part, path)
		}
	}
}

// lock takes a lock on a file, which the kernel takes back when the process ends.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, err
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Go runs the go command in a directory and returns its standard output.
func Go(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, program.Tail(stderr.Bytes(), 5))
	}
	return strings.TrimSpace(string(out)), nil
}
