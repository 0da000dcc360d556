// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipvs"
)

// parameter is a file below /proc/sys/net/ipv4 with the value that IPVS mode needs.
type parameter struct {
	file, value string
	optional    bool // IPVS mode works on kernels that do not have it
	stays       bool // its former value is not put back
}

// parameters are those that kube-proxy sets on the same kernel. It leaves vs/conn_reuse_mode
// as it is since Linux 5.9, where the default no longer delays a client that uses a port again
// (kubernetes #93297).
var parameters = []parameter{
	{file: "vs/conntrack", value: "1"},                                 // masquerading happens in conntrack
	{file: "vs/expire_nodest_conn", value: "1", optional: true},        // flows to a deleted destination get another
	{file: "vs/expire_quiescent_template", value: "1", optional: true}, // clients with affinity leave a destination with weight 0
	{file: "ip_forward", value: "1", stays: true},                      // IPVS forwards, and so do other programs
}

// strictARP are those of ipvs.strictARP: the node answers ARP requests for the addresses of
// kube-ipvs0 on no other interface, and does not announce them.
var strictARP = []parameter{{file: "conf/all/arp_ignore", value: "1"}, {file: "conf/all/arp_announce", value: "2"}}

// prepareNode sets what IPVS needs of the node: parameters, timeouts and the dummy interface.
func (b *Dataplane) prepareNode(ctx context.Context) error {
	if err := b.dummy.ensure(); err != nil {
		return err
	}
	return dataplane.Inside(b.config.NetNS, func() error { return errors.Join(enableIPv6(), b.dummy.setParameters(ctx, b.parameters())) })
}

// timeouts is the parameter that has no file: IPVS's timeouts of connections.
const timeouts = "timeouts"

func (b *Dataplane) parameters() (all []parameter) {
	all = slices.Clone(parameters)
	if b.options.StrictARP {
		all = append(all, strictARP...)
	}
	if t := b.options.Timeouts; t != (ipvs.Timeouts{}) {
		all = append(all, parameter{file: timeouts, value: fmt.Sprintf("%d,%d,%d", t.TCP, t.TCPFin, t.UDP)})
	}
	return all
}

// is reports whether the parameter has its value; 0 leaves a timeout as it is.
func (p *parameter) is(text string) bool {
	if p.file != timeouts {
		return text == p.value
	}
	all := strings.Split(text, ",")
	for i, t := range strings.Split(p.value, ",") {
		if t != "0" && t != all[i] {
			return false
		}
	}
	return true
}

// access reads a parameter, or writes it if a value is given, in the calling thread's network namespace.
func access(ctx context.Context, file, value string) (string, error) {
	if file != timeouts {
		if value != "" {
			return "", os.WriteFile(filepath.Join(proc, file), []byte(value), 0)
		}
		is, err := os.ReadFile(filepath.Join(proc, file))
		return strings.TrimSpace(string(is)), err
	}
	conn, err := ipvs.Dial(0)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	var t ipvs.Timeouts
	if value == "" {
		t, err = conn.Timeouts(ctx)
		return fmt.Sprintf("%d,%d,%d", t.TCP, t.TCPFin, t.UDP), err
	}
	if _, err := fmt.Sscanf(value, "%d,%d,%d", &t.TCP, &t.TCPFin, &t.UDP); err != nil {
		return "", err
	}
	return "", conn.SetTimeouts(ctx, t)
}

// differingParameters describes the parameters that another process has changed, except those that
// other programs need too.
func (b *Dataplane) differingParameters(ctx context.Context) (all []string, err error) {
	err = dataplane.Inside(b.config.NetNS, func() error {
		for _, p := range b.parameters() {
			switch text, err := access(ctx, p.file, ""); {
			case errors.Is(err, fs.ErrNotExist) && p.optional:
			case err != nil:
				return fmt.Errorf("reading a parameter for IPVS: %w", err)
			case !p.is(text) && !p.stays:
				all = append(all, fmt.Sprintf("%s is %s, not %s", filepath.Join(proc, p.file), text, p.value))
			}
		}
		return nil
	})
	return all, err
}

// setParameters sets parameters, and puts those back that were set before and are not among
// them. The former values are in the alias of the interface, after the mark.
func (d *dummy) setParameters(ctx context.Context, all []parameter) error {
	var errs []error
	former := formerValues(d.link.Attrs().Alias)
	var differing []parameter
	back := maps.Clone(former)
	for _, p := range all {
		delete(back, p.file)
		switch text, err := access(ctx, p.file, ""); {
		case errors.Is(err, fs.ErrNotExist) && p.optional:
		case err != nil:
			errs = append(errs, fmt.Errorf("reading a parameter for IPVS: %w", err))
		case !p.is(text):
			differing = append(differing, p)
			if _, known := former[p.file]; !known && !p.stays {
				former[p.file] = text
			}
		}
	}
	for file, value := range back {
		differing = append(differing, parameter{file: file, value: value})
	}
	// Before the values, so that none is forgotten if this process is killed.
	if err := d.mark(former); err != nil {
		return err
	}
	for _, p := range differing {
		if _, err := access(ctx, p.file, p.value); err != nil {
			errs = append(errs, fmt.Errorf("setting a parameter for IPVS: %w", err))
		}
	}
	if len(back) > 0 && len(errs) == 0 {
		maps.DeleteFunc(former, func(file, _ string) bool { _, done := back[file]; return done })
		return d.mark(former)
	}
	return errors.Join(errs...)
}

const (
	proc     = "/proc/sys/net/ipv4"
	procIPv6 = "/proc/sys/net/ipv6" // does not exist where the kernel has no IPv6
)

// enableIPv6 lets the dummy interface have IPv6 addresses where the node's interfaces must not
// (net.ipv6.conf.all.disable_ipv6).
func enableIPv6() error {
	file := filepath.Join(procIPv6, "conf", Interface, "disable_ipv6")
	if is, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(is)) == "0" {
		return nil // /proc/sys may be read-only
	}
	err := os.WriteFile(file, []byte("0"), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("setting a parameter for IPVS: %w", err)
	}
	return nil
}

// formerValues returns the values of parameters in an alias, by file.
func formerValues(alias string) map[string]string {
	all := map[string]string{}
	for i, word := range strings.Fields(alias) {
		if file, value, ok := strings.Cut(word, "="); ok && i > 0 {
			all[file] = value
		}
	}
	return all
}

// mark writes the alias of the interface, if it differs.
func (d *dummy) mark(former map[string]string) error {
	words := []string{alias}
	for _, file := range slices.Sorted(maps.Keys(former)) {
		words = append(words, file+"="+former[file])
	}
	text := strings.Join(words, " ")
	if d.link.Attrs().Alias == text {
		return nil
	}
	if err := d.handle.LinkSetAlias(d.link, text); err != nil {
		return fmt.Errorf("marking interface %s: %w", Interface, err)
	}
	d.link.Attrs().Alias = text
	return nil
}

// Disown leaves the interface, if it is Slipstream's, to kube-proxy, in the calling thread's network
// namespace: a later run in another mode does not take it for its own. Parameters stay, as kube-proxy
// sets the same.
func Disown() error {
	return withOwn(func(d *dummy) error {
		return d.handle.LinkSetAlias(d.link, disowned+strings.TrimPrefix(d.link.Attrs().Alias, disowned))
	})
}

// RestoreParameters puts back the parameters that IPVS mode has set in the calling thread's
// network namespace. It is called before the interface is removed.
func RestoreParameters() error {
	return withOwn(func(d *dummy) error { return d.setParameters(context.Background(), nil) })
}

// withOwn calls do with the interface if Slipstream has, or had, it.
func withOwn(do func(*dummy) error) error {
	d, err := openDummy(0)
	if err != nil {
		return err
	}
	defer d.close()
	if err := d.find(); err != nil || d.link == nil || !strings.HasPrefix(strings.TrimPrefix(d.link.Attrs().Alias, disowned), alias) {
		return err
	}
	return do(d)
}
