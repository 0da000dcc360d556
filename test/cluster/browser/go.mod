module github.com/slipstream-proxy/slipstream/test/cluster/browser

go 1.26.0

require (
	github.com/chromedp/cdproto v0.159.2
	github.com/chromedp/chromedp v0.23.0
	github.com/slipstream-proxy/slipstream v0.0.0
	github.com/vishvananda/netlink v1.3.1
	golang.org/x/sys v0.47.0
)

require (
	github.com/go-json-experiment/json v0.0.0-20260820222146-c27c302e5fc3 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
)

replace github.com/slipstream-proxy/slipstream => ../../..
