// SPDX-License-Identifier: Apache-2.0

package uml

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// Versions are the Linux versions that tests run on, as test/kernel/build.sh takes them.
var Versions = []string{"6.12", "6.1"}

// ErrNoKernel means that no kernel of the version is named and none is cached.
var ErrNoKernel = errors.New("no User Mode Linux kernel")

// Find returns the path of the kernel of a version that the environment names, else of
// the one that buildScript, the path of test/kernel/build.sh, has cached, else
// [ErrNoKernel] with what the script said. It builds nothing.
func Find(ctx context.Context, buildScript, version string) (string, error) {
	cmd := exec.CommandContext(ctx, buildScript, "--cached", version)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	var status *exec.ExitError
	if errors.As(err, &status) && status.ExitCode() == 1 {
		return "", fmt.Errorf("%w: %s", ErrNoKernel, bytes.TrimSpace(said.Bytes()))
	}
	if err != nil {
		return "", fmt.Errorf("%s --cached %s: %w", buildScript, version, err)
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}
