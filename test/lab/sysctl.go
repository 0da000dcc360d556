// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// profile says how a namespace's network stack behaves.
type profile struct {
	forward bool // routes packets between links, as a node does

	// Local ports that clients get. Nodes stay clear of the usual node port
	// range 30000-32767.
	firstPort, lastPort uint16
}

var (
	routerProfile = profile{forward: true, firstPort: 32768, lastPort: 65535}
	endProfile    = profile{firstPort: 16384, lastPort: 65535}
)

// apply sets the sysctls in the calling thread's namespace. It is called before
// any link is made, as links copy the "default" values. All values are set
// outright: a new namespace takes its IPv4 values from the root namespace
// (net.core.devconf_inherit_init_net is 0), so they differ between machines.
func (p profile) apply() error {
	forward := "0"
	if p.forward {
		forward = "1"
	}
	required := [][2]string{
		{"ipv4/ip_forward", forward}, // resets other values, so it is the first
		{"ipv6/conf/all/forwarding", forward},
		{"ipv6/conf/default/forwarding", forward},
		{"ipv4/ip_local_port_range", fmt.Sprintf("%d %d", p.firstPort, p.lastPort)},
	}
	for _, scope := range []string{"all", "default"} {
		required = append(required, [][2]string{
			{"ipv4/conf/" + scope + "/rp_filter", "0"},
			{"ipv4/conf/" + scope + "/send_redirects", "0"},
			{"ipv4/conf/" + scope + "/accept_redirects", "0"},
			{"ipv6/conf/" + scope + "/disable_ipv6", "0"},
			{"ipv6/conf/" + scope + "/accept_redirects", "0"},
			{"ipv6/conf/" + scope + "/accept_ra", "0"},
			{"ipv6/conf/" + scope + "/accept_dad", "0"},
		}...)
	}
	for _, kv := range required {
		if err := writeSysctl(kv[0], kv[1]); err != nil {
			return err
		}
	}
	// By default the kernel sends one ICMP error a second to a peer; then a
	// series of refused datagrams would look like timeouts.
	for _, kv := range [][2]string{
		{"ipv4/icmp_ratelimit", "0"},
		{"ipv6/icmp/ratelimit", "0"},
		{"ipv4/icmp_msgs_per_sec", "1000000"}, // per namespace since 6.13
		{"ipv4/icmp_msgs_burst", "100000"},
		{"ipv4/tcp_tw_reuse", "1"},
	} {
		if err := writeSysctl(kv[0], kv[1]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// sysctls shows those of the reading thread's namespace.
const sysctls = "/proc/sys/net/"

func writeSysctl(key, value string) error {
	if err := os.WriteFile(sysctls+key, []byte(value), 0); err != nil {
		return fmt.Errorf("sysctl net/%s: %w", key, err)
	}
	return nil
}

func readSysctl(key string) (string, error) {
	b, err := os.ReadFile(sysctls + key)
	if err != nil {
		return "", fmt.Errorf("sysctl net/%s: %w", key, err)
	}
	return strings.TrimSpace(string(b)), nil
}
