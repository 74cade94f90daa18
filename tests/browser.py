"""A real browser, driven without a window: Debian's chromium and its driver, or those that the environment names.

Where there is none a test skips with the reason, unless CARRIER_BROWSER=required, as in CI.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service


@contextmanager
def chromium(width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[webdriver.Chrome]:
    """A browser with a page of this size in CSS pixels, that prefers light or dark; it keeps the console's messages."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        reason = "no chromium with its driver: apt-get install chromium chromium-driver"
        if os.environ.get("CARRIER_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    options = Options()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    try:
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        yield browser
    finally:
        browser.quit()


def errors(browser: webdriver.Chrome) -> list[str]:
    """Errors and warnings that the page has written to the console since the last call."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
