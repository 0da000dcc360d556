// SPDX-License-Identifier: Apache-2.0

package kerneltest

// NFTBinary is the command nft with JSON output, from Debian's package nftables. Tests
// use it as a second opinion about what the kernel holds. Of the kernel it needs what
// [NFTables] needs.
var NFTBinary = define("command nft", probeNFTBinary, NFTables)

func probeNFTBinary() error {
	return inNewNetNS(func() error {
		if err := runCommand("nft add table inet " + probeTable); err != nil {
			return err
		}
		return runCommand("nft -j list table inet " + probeTable)
	})
}
