// SPDX-License-Identifier: Apache-2.0

package nfnl

// Settle waits until what committed transactions have deleted in a network namespace
// (given as for Dial) is gone. The kernel takes it away some time after a transaction,
// when no packet can be on its way through it any more; and when a netfilter socket is
// closed, it waits for that (nft_rcv_nl_event, Linux 5.12).
func Settle(netns int) error {
	conn, err := Dial(netns)
	if err != nil {
		return err
	}
	return conn.Close()
}
