// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// lockSeconds is how long iptables-legacy waits for its lock.
var lockSeconds = "60"

// command is the name of an iptables command for a family. Suffix is "", "-restore" or "-save".
func (v Variant) command(f desired.Family, suffix string) string {
	if f == desired.IPv6 {
		return "ip6tables-" + string(v) + suffix
	}
	return "iptables-" + string(v) + suffix
}

// run runs a command in a network namespace and returns its output.
func run(ctx context.Context, netns int, input []byte, name string, args ...string) (out []byte, err error) {
	err = dataplane.Inside(netns, func() error {
		const commandTimeout = 2 * time.Minute // how long one command may take
		ctx, cancel := context.WithTimeout(ctx, commandTimeout)
		defer cancel()
		cmd := exec.CommandContext(ctx, name, args...)
		var said bytes.Buffer
		cmd.Stdin, cmd.Stderr = bytes.NewReader(input), &said
		if out, err = cmd.Output(); err != nil {
			if ctx.Err() != nil {
				err = ctx.Err() // rather than "signal: killed"
			}
			return fmt.Errorf("%s: %w%s", strings.Join(append([]string{name}, args...), " "), err, explain(said.String(), input))
		}
		return nil
	})
	return out, err
}

var lineNumber = regexp.MustCompile(`[Ll]ine:? (\d+)`)

// explain is the first line of a command's error output, with the line of its input that
// this is about.
func explain(said string, input []byte) string {
	lines := strings.Split(strings.TrimSpace(said), "\n")
	said = strings.TrimSpace(lines[0])
	if strings.HasSuffix(said, ":") && len(lines) > 1 { // only the name and the version
		said += " " + strings.TrimSpace(lines[1])
	}
	out := ": " + said
	if m := lineNumber.FindStringSubmatch(said); m != nil {
		n, _ := strconv.Atoi(m[1])
		if lines := bytes.SplitN(input, []byte("\n"), n+1); n > 0 && n <= len(lines) {
			out += fmt.Sprintf(" (%s)", lines[n-1])
		}
	}
	return out
}

// restore runs a script. Each table takes effect as a whole or not at all.
func (v Variant) restore(ctx context.Context, netns int, f desired.Family, input []byte) error {
	_, err := run(ctx, netns, input, v.command(f, "-restore"), "--noflush", "-w", lockSeconds)
	return err
}

// save returns a table as text.
func (v Variant) save(ctx context.Context, netns int, f desired.Family, table string) ([]byte, error) {
	return run(ctx, netns, nil, v.command(f, "-save"), "-t", table)
}
