// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// iptablesPath is a PATH with which a program finds one variant of the iptables commands
// ("legacy" or "nft") under the names that kube-proxy calls, by links in dir.
func iptablesPath(dir, variant string) (string, error) {
	dir = filepath.Join(dir, "bin")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			path, err := exec.LookPath(family + "-" + variant + suffix)
			if err != nil {
				return "", fmt.Errorf("%w (Debian's package is iptables; test/deps.sh installs it)", err)
			}
			if err := os.Symlink(path, filepath.Join(dir, family+suffix)); err != nil {
				return "", err
			}
		}
	}
	return dir + string(os.PathListSeparator) + os.Getenv("PATH"), nil
}
