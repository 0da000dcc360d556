// SPDX-License-Identifier: Apache-2.0

package proxies

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// BuildSlipstream builds the command slipstream, as it is in this checkout, into dir and
// returns its path.
func BuildSlipstream(ctx context.Context, dir string) (string, error) {
	root, err := goCommand(ctx, "", "list", "-m", "-f", "{{.Dir}}", "github.com/slipstream-proxy/slipstream")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "slipstream")
	_, err = goCommand(ctx, root, "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", path, "./cmd/slipstream")
	return path, err
}

func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}
