// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// IPVS is the kernel's own load balancer, which kube-proxy's IPVS mode programs. It
// needs CONFIG_IP_VS (Linux 2.6; its netlink interface is there since 2.6.28).
var IPVS = define("IPVS", probeIPVS, NetNS)

func probeIPVS() error {
	return inNewNetNS(func() error {
		family, err := netlink.GenlFamilyGet("IPVS")
		if err != nil {
			return fmt.Errorf("generic netlink family IPVS: %w", err)
		}
		const getInfo, version = 15, 1 // IPVS_CMD_GET_INFO, IPVS_GENL_VERSION
		request := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_REQUEST)
		request.AddData(&nl.Genlmsg{Command: getInfo, Version: version})
		answers, err := request.Execute(unix.NETLINK_GENERIC, 0)
		if err != nil {
			return fmt.Errorf("get info: %w", err)
		}
		if len(answers) == 0 {
			return errors.New("get info: no answer")
		}
		return nil
	})
}
