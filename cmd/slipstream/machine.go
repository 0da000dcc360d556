// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"strconv"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/node/conntrack"
	"github.com/slipstream-proxy/slipstream/internal/node/sysctl"
	"k8s.io/klog/v2"
)

// initialize sets what takes more privileges than the proxy needs afterwards
// (--init-only).
func initialize(c *config.Config) error {
	conn, err := conntrack.New(0) // so that the kernel has loaded nf_conntrack
	if err != nil {
		return err
	}
	defer conn.Close()
	return errors.Join(c.Conntrack(sysctl.CPUs()).Apply(), localhostNodePorts(nodePorts(c.KubeProxy.NodePortAddresses, c.LocalhostNodePorts())))
}

// localhostNodePorts has the kernel do what NodePorts take that answer on IPv4 loopback
// addresses, if any are to.
func localhostNodePorts(n desired.NodePortAddresses) error {
	if !n.OnLoopback() {
		return nil
	}
	return sysctl.RouteLocalnet()
}

// adjustOOMScore says how soon the kernel ends this process for want of memory, where
// there is something to say. Less than before takes CAP_SYS_RESOURCE.
func adjustOOMScore(score *int32) {
	if score == nil {
		return
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(int(*score))), 0); err != nil {
		klog.V(2).InfoS("Could not set oom_score_adj", "score", *score, "reason", err.Error())
	}
}
