// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// commandTimeout bounds one command of a probe.
const commandTimeout = 30 * time.Second

// runCommand runs a command with its arguments, separated by single spaces. Its error
// carries the first line of what the command said.
func runCommand(line string) error {
	words := strings.Fields(line)
	path, err := exec.LookPath(words[0])
	if err != nil {
		return fmt.Errorf("command %s is not installed (see test/deps.sh)", words[0])
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, words[1:]...).CombinedOutput()
	if err != nil {
		said, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n"))
		return fmt.Errorf("%s: %w: %s", line, err, said)
	}
	return nil
}
