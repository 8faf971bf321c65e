"""Price lists of clouds, from local servers that speak as the clouds do."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from gpuloom.errors import UnavailableError
from services.cost_engine.core.prices import Price, Source
from services.cost_engine.prices.aws import AwsPrices, spot_prices
from services.cost_engine.prices.azure import AzurePrices
from services.cost_engine.prices.gcp import GcpPrices

NOW_NS = 495_000 * 3_600_000_000_000


@asynccontextmanager
async def serving(handler: Any, method: str = "GET") -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route(method, "/{tail:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def shown(prices: Any) -> set[tuple[str, str, str, int]]:
    return {(each.region, each.instance_type, each.capacity_type, each.nano_usd_per_hour) for each in prices}


def an_aws_product(name: str, gpu: str, hourly: str, *, unit: str = "Hrs") -> str:
    def term(amount: str, **attributes: str) -> dict[str, Any]:
        dimensions = {"SKU.T.D": {"unit": unit, "pricePerUnit": {"USD": amount}}}
        return {"SKU.T": {"termAttributes": attributes, "priceDimensions": dimensions}}

    reserved = term("1.5", LeaseContractLength="1yr", OfferingClass="standard", PurchaseOption="No Upfront")
    product = {"sku": "SKU", "attributes": {"instanceType": name, "regionCode": "us-east-1", "gpu": gpu}}
    return json.dumps({"product": product, "terms": {"OnDemand": term(hourly), "Reserved": reserved}})


async def test_aws_list_prices_come_in_pages_and_only_machines_with_gpus_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def answer(request: web.Request) -> web.Response:
        if "X-Amz-Target" not in request.headers:
            # EC2 speaks XML; it has no spot prices here.
            return web.Response(
                text="<DescribeSpotPriceHistoryResponse><spotPriceHistorySet/></DescribeSpotPriceHistoryResponse>",
                content_type="text/xml",
            )
        asked = json.loads(await request.text())
        assert {"Type": "TERM_MATCH", "Field": "regionCode", "Value": "us-east-1"} in asked["Filters"]
        if "NextToken" not in asked:
            page = [
                an_aws_product("p5.48xlarge", "8", "55.0400000000"),
                an_aws_product("m5.large", "0", "0.1"),
            ]
            return web.json_response({"FormatVersion": "aws_v1", "PriceList": page, "NextToken": "2"})
        page = [
            an_aws_product("g6.xlarge", "1", "0.0000000000"),
            an_aws_product("g5.xlarge", "1", "1", unit="Day"),
        ]
        return web.json_response({"FormatVersion": "aws_v1", "PriceList": page})

    async with serving(answer, "POST") as url:
        for name, value in {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }.items():
            monkeypatch.setenv(name, value)
        told = await AwsPrices(["us-east-1"]).fetch(NOW_NS)

    assert shown(told) == {
        ("us-east-1", "p5.48xlarge", "on-demand", 55_040_000_000),
        ("us-east-1", "p5.48xlarge", "reserved", 1_500_000_000),
        ("us-east-1", "g6.xlarge", "reserved", 1_500_000_000),
    }


async def test_a_right_that_aws_misses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"__type": "AccessDeniedException", "message": "no"}, status=400)

    async with serving(answer, "POST") as url:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(UnavailableError, match="refused GetProducts: AccessDeniedException"):
            await AwsPrices(["us-east-1"]).fetch(NOW_NS)


def test_aws_spot_prices_are_of_a_zone_and_since_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    boto3 = pytest.importorskip("boto3")
    moto = pytest.importorskip("moto")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")

    with moto.mock_aws():
        ec2 = boto3.client("ec2", region_name="us-east-1")
        told = list(spot_prices(ec2, "us-east-1", ["p4d.24xlarge"], NOW_NS))

    assert told
    assert {(each.capacity_type, each.instance_type, each.source) for each in told} == {
        ("spot", "p4d.24xlarge", Source.AWS)
    }
    assert all(each.zone.startswith("us-east-1") and each.nano_usd_per_hour == 10_000 for each in told)


def an_azure_item(**changes: Any) -> dict[str, Any]:
    return {
        "currencyCode": "USD",
        "retailPrice": 3.673,
        "armRegionName": "eastus",
        "productName": "Virtual Machines NCads A100 v4 Series",
        "meterName": "NC24ads A100 v4",
        "skuName": "NC24ads A100 v4",
        "armSkuName": "Standard_NC24ads_A100_v4",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        **changes,
    }


async def test_azure_prices_come_in_pages_and_a_reservation_is_for_its_whole_term() -> None:
    async def answer(request: web.Request) -> web.Response:
        if "skip" in request.query:
            items = [
                an_azure_item(type="Reservation", reservationTerm="1 Year", retailPrice=17520.0),
                an_azure_item(productName="Virtual Machines NC Windows"),
                an_azure_item(meterName="NC24ads Low Priority"),
                an_azure_item(productName="NCADSA100v4 Series Cloud Services", retailPrice=7.1),
                an_azure_item(productName="NCADSA100v4 Series CloudServices", retailPrice=7.2),
                an_azure_item(effectiveStartDate="2099-01-01T00:00:00Z", retailPrice=7.3),
                an_azure_item(effectiveEndDate="2021-01-01T00:00:00Z", retailPrice=7.4),
                an_azure_item(currencyCode="EUR"),
                an_azure_item(retailPrice=0.0),
            ]
            return web.json_response({"Items": items, "NextPageLink": "https://elsewhere.example/steal"})
        spot = an_azure_item(skuName="NC24ads A100 v4 Spot", retailPrice=0.7)
        following = f"{request.url.origin()}/next?skip=2"
        return web.json_response({"Items": [an_azure_item(), spot], "NextPageLink": following})

    async with serving(answer) as url:
        told = await AzurePrices(["eastus"], url).fetch(NOW_NS)

    name = "Standard_NC24ads_A100_v4"
    assert shown(told) == {
        ("eastus", name, "on-demand", 3_673_000_000),
        ("eastus", name, "spot", 700_000_000),
        ("eastus", name, "reserved", 2_000_000_000),
    }


def a_gcp_sku(description: str, units: str, nanos: int, usage: str = "OnDemand") -> dict[str, Any]:
    price = {"currencyCode": "USD", "units": units, "nanos": nanos}
    expression = {
        "usageUnit": "GiBy.h" if "Ram" in description else "h",
        "tieredRates": [{"unitPrice": price}],
    }
    return {
        "description": description,
        "category": {"usageType": usage},
        "serviceRegions": ["us-central1"],
        "pricingInfo": [{"pricingExpression": expression}],
    }


async def test_a_machine_of_google_is_the_sum_of_its_parts() -> None:
    skus = [
        a_gcp_sku("A2 Instance Core running in Americas", "0", 31_611_000),
        a_gcp_sku("A2 Instance Ram running in Americas", "0", 4_237_000),
        a_gcp_sku("Nvidia Tesla A100 GPU running in Americas", "2", 933_908_000),
        a_gcp_sku("Nvidia Tesla A100 GPU attached to DWS Defined Duration VMs running in Americas", "1", 0),
        a_gcp_sku("Reserved Nvidia Tesla A100 GPU in Americas", "1", 0),
        a_gcp_sku("A3Plus Instance Core running in Americas", "0", 26_924_000),
        a_gcp_sku("A3Plus Instance Ram running in Americas", "0", 2_344_000),
        a_gcp_sku("Nvidia H100 80GB Plus GPU running in Americas", "10", 344_276_000),
        a_gcp_sku("Nvidia H100 80GB GPU running in Americas", "9", 796_551_000),
        # Says that it is on demand.
        a_gcp_sku("Nvidia Tesla A100 GPU attached to Spot Preemptible VMs", "0", 880_172_000),
    ]

    async def answer(request: web.Request) -> web.Response:
        first = request.query.get("pageToken") != "2"
        return web.json_response({"skus": skus[:2], "nextPageToken": "2"} if first else {"skus": skus[2:]})

    async with serving(answer) as url:
        told = await GcpPrices(["us-central1"], "key", url).fetch(NOW_NS)

    one = 12 * 31_611_000 + 85 * 4_237_000 + 2_933_908_000
    assert ("us-central1", "a2-highgpu-1g", "on-demand", one) in shown(told)
    mega = 208 * 26_924_000 + 1872 * 2_344_000 + 8 * 10_344_276_000
    assert [each.nano_usd_per_hour for each in told if each.instance_type.startswith("a3")] == [mega]
    assert {each.capacity_type for each in told} == {"on-demand"}


async def test_a_cloud_that_does_not_answer_is_unavailable() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=500)

    async with serving(answer) as url:
        with pytest.raises(UnavailableError, match="did not tell"):
            await AzurePrices(["eastus"], url).fetch(NOW_NS)


@pytest.mark.parametrize(
    "spoiled",
    [
        {"category": None},
        {"serviceRegions": None},
        {"pricingInfo": [None]},
        {"pricingInfo": [{"pricingExpression": {"usageUnit": "h", "tieredRates": [None]}}]},
    ],
)
async def test_a_reply_of_another_shape_is_unavailable_and_stops_nothing_else(
    spoiled: dict[str, Any],
) -> None:
    async def answer(_: web.Request) -> web.Response:
        sku = a_gcp_sku("Nvidia L4 GPU running in Americas", "1", 0) | spoiled
        return web.json_response({"skus": [sku], "Items": [spoiled, None]})

    async with serving(answer) as url:
        with pytest.raises(UnavailableError, match="did not tell"):
            await GcpPrices(["us-central1"], "key", url).fetch(NOW_NS)
        with pytest.raises(UnavailableError, match="did not tell"):
            await AzurePrices(["eastus"], url).fetch(NOW_NS)


@pytest.mark.parametrize("nano", [0, -1])
def test_a_price_that_is_not_above_zero_can_not_be_made(nano: int) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Price("aws", "", "", "x", "spot", nano, 0, None, Source.AWS)
