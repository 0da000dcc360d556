// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/test/oracle/program"
)

// Programs are the names that [Binary] knows: tools of the module ../tools.
var Programs = []string{"kube-proxy", "kube-apiserver"}

// Log is called with one line about what takes long. It may be nil.
type Log func(format string, args ...any)

func (l Log) printf(format string, args ...any) {
	if l != nil {
		l(format, args...)
	}
}

// built are the paths of the programs that this process has asked for.
var built = struct {
	sync.Mutex
	paths map[string]string
}{paths: map[string]string{}}

// Binary returns the path of one of Kubernetes' programs, in the go command's build cache.
// The go command builds it unless it is there, which takes minutes. Several processes may
// do so at the same time.
func Binary(ctx context.Context, name string, log Log) (string, error) {
	built.Lock()
	defer built.Unlock()
	if path := built.paths[name]; path != "" {
		return path, nil
	}
	// The module is found from anywhere in this module or in one that requires it.
	oracle, err := Go(ctx, "", "list", "-m", "-f", "{{.Dir}}", "github.com/slipstream-proxy/slipstream/test/oracle")
	if err != nil {
		return "", fmt.Errorf("not in the module test/oracle, nor in one that requires it: %w", err)
	}
	tools := filepath.Join(oracle, "tools")
	version, err := Go(ctx, tools, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	if err != nil {
		return "", err
	}
	slow := time.AfterFunc(10*time.Second, func() {
		log.printf("building %s %s, which takes minutes the first time", name, version)
	})
	defer slow.Stop()
	flags := "GOFLAGS=-buildvcs=false -trimpath '-ldflags=-s -w -X k8s.io/component-base/version.gitVersion=" + version + "'"
	path, err := goWith(ctx, flags, tools, "tool", "-n", name)
	if err != nil {
		return "", fmt.Errorf("build %s %s: %w", name, version, err)
	}
	built.paths[name] = path
	return path, nil
}

// Go runs the go command in a directory and returns its standard output.
func Go(ctx context.Context, dir string, args ...string) (string, error) {
	return goWith(ctx, "CGO_ENABLED=0", dir, args...)
}

func goWith(ctx context.Context, env, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", env)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, program.Tail(stderr.Bytes(), 20))
	}
	return strings.TrimSpace(string(out)), nil
}
