// SPDX-License-Identifier: Apache-2.0

package uml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// KernelVariable is the environment variable that names a ready kernel.
const KernelVariable = "SLIPSTREAM_TESTKERNEL"

// ErrNoKernel means that no kernel is named and none is cached.
var ErrNoKernel = errors.New("no User Mode Linux kernel: set " + KernelVariable + " to one, or build it with test/kernel/build.sh")

// Find returns the path of the kernel that SLIPSTREAM_TESTKERNEL names, else of the
// one that buildScript, the path of test/kernel/build.sh, has cached, else
// [ErrNoKernel]. It builds nothing.
func Find(ctx context.Context, buildScript string) (string, error) {
	if path := os.Getenv(KernelVariable); path != "" {
		info, err := os.Stat(path)
		if err != nil {
			return "", fmt.Errorf("%s: %w", KernelVariable, err)
		}
		if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
			return "", fmt.Errorf("%s: %s is not an executable file", KernelVariable, path)
		}
		return path, nil
	}
	out, err := exec.CommandContext(ctx, buildScript, "--cached").Output()
	var status *exec.ExitError
	if errors.As(err, &status) && status.ExitCode() == 1 {
		return "", ErrNoKernel
	}
	if err != nil {
		return "", fmt.Errorf("%s --cached: %w", buildScript, err)
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}
