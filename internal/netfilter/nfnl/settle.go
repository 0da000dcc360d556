// SPDX-License-Identifier: Apache-2.0

package nfnl

// Settle waits until the kernel has freed the objects that committed transactions deleted in
// a network namespace (given as for Dial). The kernel frees them after a grace period, when
// no packet can use them. It waits for that when a netfilter socket is closed
// (nft_rcv_nl_event, Linux 5.12).
func Settle(netns int) error {
	conn, err := Dial(netns)
	if err != nil {
		return err
	}
	return conn.Close()
}
